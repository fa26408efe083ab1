"""A secret that a backend repeats is taken out in every encoding, and nothing else is."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.masking import mask

SECRET = 'pa/ss+w"or\\d é'
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json utf-8": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps({"body": json.dumps({"password": text})}),
    "json utf-8 in json": lambda text: json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False),
    "repr": repr,
    "url": lambda text: quote(text, safe=""),
    "url path": quote,
    "form": quote_plus,
    "hex": lambda text: text.encode().hex(),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoded_secret_is_masked(name: str) -> None:
    encoded = ENCODINGS[name](SECRET)
    quoted = encoded[1:-1] if encoded[0] == encoded[-1] and encoded[0] in "\"'" else encoded
    masked = mask(f"wrong: {encoded}!", [SECRET])
    assert quoted not in masked
    assert masked.startswith("wrong: ")
    assert masked.endswith("!")


@given(before=st.binary(max_size=20), after=st.binary(max_size=20))
def test_base64_is_masked_at_every_alignment(before: bytes, after: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + SECRET.encode() + after).decode()
        masked = mask(encoded, [SECRET])
        assert "***" in masked
        # Of the secret's own characters, only those that share theirs with a neighbour may be left.
        assert len(masked) - 3 <= len(encoded) - (len(SECRET.encode()) * 8 // 6 - 2)


def test_a_secret_that_is_part_of_another_leaves_nothing_of_the_longer_one() -> None:
    assert mask("key abc-def", ["abc", "abc-def"]) == "key ***"


def test_no_secret_and_an_empty_one_change_nothing() -> None:
    assert mask("as it was", []) == mask("as it was", [""]) == "as it was"
