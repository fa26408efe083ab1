"""A secret that a backend repeats is taken out in every encoding, and nothing else is."""

import base64
import itertools
import json
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.masking import StreamMask, mask

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


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` in chunks that begin at `at`."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def streamed(mask: StreamMask, chunks: list[bytes]) -> bytes:
    shown, held = b"", b""
    for chunk in chunks:
        masked, held = mask.feed(held + chunk)
        assert b"\n" not in held
        shown += masked
    return shown + mask.feed(held, ends=True)[0]


class TestStreams:
    @pytest.mark.parametrize("name", ENCODINGS)
    def test_an_encoded_secret_is_masked_wherever_the_stream_is_cut(self, name: str) -> None:
        data = f"token {ENCODINGS[name](SECRET)} end\n".encode()
        mask = StreamMask([SECRET])
        for place in range(len(data) + 1):
            shown = streamed(mask, cut(data, [place]))
            assert b"***" in shown
            assert SECRET.encode() not in shown
            assert shown.startswith(b"token ")
            assert shown.endswith(b" end\n")

    @given(
        st.lists(st.text("ab\n", min_size=1, max_size=8), max_size=3),
        st.lists(st.text("ab\n", max_size=12), max_size=6).map("".join),
        st.lists(st.integers(0, 200), max_size=8),
    )
    def test_the_result_does_not_depend_on_where_it_was_cut(
        self, secrets: list[str], text: str, places: list[int]
    ) -> None:
        mask = StreamMask(secrets)
        whole, held = mask.feed(text.encode() + b"\n")
        assert held == b""
        assert streamed(mask, cut(text.encode() + b"\n", places)) == whole

    @given(st.lists(st.text(min_size=6, max_size=9), min_size=1, max_size=3), st.data())
    def test_no_secret_of_one_line_is_left(self, secrets: list[str], data: st.DataObject) -> None:
        secrets = [secret.replace("\n", "x") for secret in secrets if len(secret.splitlines()) == 1]
        parts = data.draw(st.lists(st.sampled_from([*secrets, "a", "\n", "x" * 3]), max_size=12))
        shown = streamed(StreamMask(secrets), [part.encode("utf-8", "surrogatepass") for part in parts])
        left = shown.replace(b"***", b"\0")
        assert not any(s.encode("utf-8", "surrogatepass") in left for s in secrets if len(s.strip()) >= 6)

    def test_a_short_value_is_left_for_it_is_part_of_everything(self) -> None:
        assert not StreamMask(["", "1", "true", "12345"])

    def test_each_line_of_a_value_of_several_is_masked(self) -> None:
        key = "-----BEGIN KEY-----\nMIIEvAIBADANBgkqh\nkiG9w0BAQEFAASC\n-----END KEY-----\n"
        shown, held = StreamMask([key]).feed(f"key:\n{key}done\n".encode())
        assert (shown, held) == (b"key:\n***\n***\n***\n***\ndone\n", b"")

    @pytest.mark.parametrize("line_length", [76, 64])
    def test_base64_that_a_tool_has_wrapped_is_masked(self, line_length: int) -> None:
        secret = "".join(chr(33 + n % 90) for n in range(150))
        encoded = base64.b64encode(secret.encode()).decode()
        wrapped = "\n".join(encoded[at : at + line_length] for at in range(0, len(encoded), line_length))
        shown, _ = StreamMask([secret]).feed(f"{wrapped}\n".encode())
        assert set(shown.split(b"\n")) == {b"***", b""}

    def test_hex_that_xxd_has_wrapped_is_masked(self) -> None:
        encoded = SECRET.encode().hex() * 4
        wrapped = "\n".join(encoded[at : at + 60] for at in range(0, len(encoded), 60))
        shown, _ = StreamMask([SECRET * 4]).feed(f"{wrapped}\n".encode())
        assert set(shown.split(b"\n")) == {b"***", b""}

    def test_secrets_of_many_lines_hold_up_no_log(self) -> None:
        lines = [f"{number:07}" for number in range(20_000)]
        mask = StreamMask(["\n".join(lines)])
        began = time.process_time()
        shown, _ = mask.feed("\n".join([*lines, ""]).encode())
        # To look for each line by itself would take half a minute.
        assert time.process_time() - began < 3
        assert shown == b"***\n" * len(lines)

    def test_lines_that_begin_with_each_other_hold_up_no_log(self) -> None:
        mask = StreamMask(["\n".join("a" * length for length in range(6, 1400))])
        began = time.process_time()
        shown, held = mask.feed(b"a" * 65_536)
        assert time.process_time() - began < 3
        assert len(shown) + len(held) < 65_536

    def test_a_whole_text_is_masked_to_its_last_character(self) -> None:
        mask = StreamMask(["abcdef", "abcdefghij-longer"])
        assert mask.mask("x abcdef") == "x ***"
        assert mask.mask("x abcdefghij-longe") == "x ***ghij-longe"
        assert mask.mask("") == ""

    def test_it_does_not_show_what_it_masks(self) -> None:
        assert SECRET not in repr(StreamMask([SECRET]))
