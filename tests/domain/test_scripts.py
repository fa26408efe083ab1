"""Scripts are normalised once, and only in what editors break (case 18)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.scripts import MAX_SCRIPT_BYTES, normalise

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("given_bytes", "text"),
    [
        (b"echo hi\n", "echo hi\n"),
        (b"echo hi", "echo hi"),
        (b"echo a\r\necho b\r\n", "echo a\necho b\n"),
        (b"echo a\r\necho b", "echo a\necho b"),
        (BOM + b"echo hi\n", "echo hi\n"),
        (BOM + b"#!/usr/bin/env python3\r\nprint(1)\r\n", "#!/usr/bin/env python3\nprint(1)\n"),
        (b"printf 'a\rb'\n", "printf 'a\rb'\n"),
        (b"cat <<'E'\r\nx\r\nE\r\n", "cat <<'E'\nx\nE\n"),
        (BOM + BOM + b"x", "\ufeffx"),
        ("echo 'é 🚀'\r\n".encode(), "echo 'é 🚀'\n"),
        (b"\techo \\\r\n  hi", "\techo \\\n  hi"),
    ],
)
def test_marks_of_editors_go_and_all_else_stays(given_bytes: bytes, text: str) -> None:
    assert normalise(given_bytes) == text


@pytest.mark.parametrize(
    ("given_bytes", "message"),
    [
        (b"echo a\necho \0b", "NUL character in line 2"),
        (b"echo \xff", "not UTF-8: byte 5"),
        ("echo hi".encode("utf-16"), "not UTF-8: byte 0"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"", "empty"),
        (BOM, "empty"),
        (b" \r\n\t\n", "empty"),
    ],
)
def test_what_no_shell_can_run_is_refused_with_its_field(given_bytes: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        normalise(given_bytes, field="container.script_b64")
    assert refused.value.field == "container.script_b64"


def test_the_largest_script_passes_and_a_byte_more_names_the_limit() -> None:
    assert len(normalise(b"#" * MAX_SCRIPT_BYTES)) == MAX_SCRIPT_BYTES
    with pytest.raises(InvalidRequest) as refused:
        normalise(b"#" * (MAX_SCRIPT_BYTES + 1))
    assert refused.value.limit == 5_242_880


@given(st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"]), min_size=1))
def test_a_clean_script_stays_as_it_is_and_its_windows_form_becomes_it(text: str) -> None:
    if not text.strip():
        return
    assert normalise(text.encode()) == text
    assert normalise(BOM + text.replace("\n", "\r\n").encode()) == text


@given(st.binary(max_size=200))
def test_any_bytes_are_either_refused_or_free_of_what_breaks_shells(data: bytes) -> None:
    try:
        text = normalise(data)
    except InvalidRequest:
        return
    assert "\0" not in text
    assert text.encode().replace(b"\r", b"") == data.removeprefix(BOM).replace(b"\r", b"")
