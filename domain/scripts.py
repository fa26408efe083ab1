"""Scripts, normalised in one place: a BOM and CRLF line ends are artefacts of editors and break the shell.

Only the script's own text is changed, never arguments, environment values or data.
"""

from domain.errors import InvalidRequest

MAX_SCRIPT_BYTES = 5 * 1024 * 1024


def normalise(data: bytes, *, field: str = "container.script_b64") -> str:
    """The text of a decoded script: without a byte order mark, lines ended by LF, everything else as it was.

    Raises:
        InvalidRequest: larger than 5 MiB, not UTF-8, empty, or with a NUL, which no shell can read.
    """
    if len(data) > MAX_SCRIPT_BYTES:
        raise InvalidRequest(
            f"the script has {len(data)} bytes, at most {MAX_SCRIPT_BYTES} are allowed: let it fetch large data",
            field=field,
            limit=MAX_SCRIPT_BYTES,
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the script is not UTF-8: byte {error.start} cannot be read", field=field) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InvalidRequest(f"the script has a NUL character in line {line}", field=field)
    if not text.strip():
        raise InvalidRequest("the script is empty", field=field)
    return text
