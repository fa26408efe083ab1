"""JSON in and out: exact numbers, `Z` times, canonical bytes."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.encoding import canonical_json, encode, number, parse_json
from domain.errors import BadRequest, InvalidRequest

decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text().filter(lambda t: "\0" not in t)
names = st.text(max_size=10).filter(lambda t: "\0" not in t)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
)


@given(decimals)
def test_a_decimal_is_written_with_exactly_its_digits(value: Decimal) -> None:
    assert json.loads(encode([number(value)]), parse_float=Decimal, parse_int=Decimal) == [value]


@pytest.mark.parametrize(
    ("value", "text"),
    [("0.440", b"0.44"), ("5.00", b"5"), ("0.00", b"0"), ("-0.0", b"0"), ("5E+2", b"500"), ("1E-7", b"0.0000001")],
)
def test_a_decimal_is_written_without_exponent_or_idle_zeros(value: str, text: bytes) -> None:
    assert encode(Decimal(value)) == text


def test_times_end_in_z() -> None:
    assert encode(datetime(2026, 7, 29, 12, 1, tzinfo=UTC)) == b'"2026-07-29T12:01:00Z"'


@given(values)
def test_what_was_sent_is_what_is_read(value: Any) -> None:
    assert parse_json(orjson.dumps(value)) == value


def test_a_fraction_is_read_without_float_error() -> None:
    assert parse_json(b'{"a": 0.1, "b": 1e-2, "c": 5}') == {"a": Decimal("0.1"), "b": Decimal("0.01"), "c": 5}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"a": 1',
        b"name=value",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\\ud800"}',
        b'"\xff"',
        b'{"a": 1} {}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=range(14),
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_json(body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a": ["x", {"b": "n\\u0000"}]}', "a.1.b"),
        (b'{"a": {"n\\u0000": 1}}', "a"),
        (b'"\\u0000"', "body"),
    ],
)
def test_nul_in_a_string_is_refused_and_named(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    assert caught.value.field == field


@pytest.mark.parametrize("end", [b'"\\u0000"', b'"x"'])
def test_a_body_is_refused_or_read_whatever_its_depth(end: bytes) -> None:
    """Readers give up at different depths: none of them may do it with an error of its own."""
    for depth in range(1, 1100):
        try:
            parse_json(b'{"a":' * depth + end + b"}" * depth)
        except (BadRequest, InvalidRequest):
            continue


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert parse_json(b'"\\\\u0000"') == "\\u0000"


@given(st.dictionaries(names, values, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_change_the_canonical_bytes(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


@given(values, values)
def test_different_values_have_different_canonical_bytes(one: Any, other: Any) -> None:
    # True == 1 in Python, not in JSON.
    same = orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)
    assert (canonical_json(one) == canonical_json(other)) == same


def test_the_writing_of_a_number_does_not_change_the_canonical_bytes() -> None:
    forms = [b"5", b"5.0", b"5.00", b"0.5e1", b"50e-1"]
    assert len({canonical_json(parse_json(form)) for form in forms}) == 1
    assert canonical_json(parse_json(b"0.10")) == canonical_json(parse_json(b"1e-1"))
    assert canonical_json(parse_json(b"0.1")) != canonical_json(parse_json(b'"0.1"'))
