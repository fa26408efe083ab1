"""Takes secrets out of text that may repeat them, in whatever encoding: a backend's complaint, a workload's output."""

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "***"
MIN_MASKED_CHARACTERS = 6
"""In output a shorter value stays: `1` or `true` is part of everything."""

# A shorter core of base64 could be a part of anything.
_SHORTEST_ENCODED = 6
# What the tools that encode break their lines at: base64(1) and PEM.
_LINE_LENGTHS = (76, 64)
_LONGEST_WRAPPED = 8192


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of `secrets`, however they are written in it."""
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    # The longest first: one form can hold another.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


class StreamMask:
    """Masks a stream of bytes that comes in chunks: the result does not depend on where they were cut.

    Best effort: it knows the values, their base64 at any alignment, and how JSON, URLs and hex write them.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form.encode() for secret in secrets for form in _line_forms(secret)}
        # The longest first: of two forms that begin at one place the longer is the secret.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self.size = sum(map(len, self._forms))
        """Bytes that it holds, for whoever keeps several."""

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __repr__(self) -> str:
        return f"StreamMask({len(self._forms)} forms)"

    def feed(self, data: bytes, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The masked beginning of `data`, and its end that may be the beginning of a secret: to be put before what
        comes next. That end has no line feed, so every whole line is out; it is empty when the stream `ends`."""
        next_at = {form: at for form in self._forms if (at := data.find(form)) >= 0}
        beginnings = [] if ends else self._beginnings(data)
        if not next_at:
            held = beginnings[0] if beginnings else len(data)
            return data[:held], data[held:]
        parts: list[bytes] = []
        position = 0
        while next_at:
            form = min(next_at, key=lambda form: (next_at[form], -len(form)))
            at = next_at[form]
            # A longer secret that begins here, or before, may still be coming.
            if any(position <= beginning <= at for beginning in beginnings):
                break
            parts += (data[position:at], MASK.encode())
            position = at + len(form)
            for other in [f for f, found in next_at.items() if found < position]:
                if (found := data.find(other, position)) < 0:
                    del next_at[other]
                else:
                    next_at[other] = found
        held = next((b for b in beginnings if b >= position), len(data))
        return b"".join([*parts, data[position:held]]), data[held:]

    def mask(self, text: str) -> str:
        """A whole text, masked."""
        masked, _ = self.feed(text.encode("utf-8", "surrogatepass"), ends=True)
        return masked.decode("utf-8", "replace")

    def _beginnings(self, data: bytes) -> list[int]:
        """Where the rest of `data` is the beginning of a secret, in order."""
        found: set[int] = set()
        for form in self._forms:
            at = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while at >= 0:
                # The cheap comparison first: a value may be long, and begin with what everything has.
                if form.startswith(data[at : at + 8]) and form.startswith(data[at:]):
                    found.add(at)
                at = data.find(form[:1], at + 1)
        return sorted(found)


def _line_forms(secret: str) -> set[str]:
    """The forms that a line of output can hold: of a text of several lines each of them, and the whole encoded."""
    forms: set[str] = set()
    if len(secret.strip()) >= MIN_MASKED_CHARACTERS:
        forms |= {form for form in _forms(secret) if "\n" not in form and "\r" not in form}
        encoded = base64.b64encode(secret.encode()).decode()
        for length in _LINE_LENGTHS:
            if length < len(encoded) <= _LONGEST_WRAPPED:
                forms |= {encoded[at : at + length] for at in range(0, len(encoded), length)}
    for line in secret.splitlines():
        forms |= {line, line.strip()}
    return {form for form in forms if len(form) >= MIN_MASKED_CHARACTERS}


def _forms(secret: str) -> set[str]:
    once = _in_json({secret})
    forms = {secret, repr(secret)[1:-1], *once, *_in_json(once)}
    forms |= {quote(secret), quote(secret, safe=""), quote_plus(secret), secret.encode().hex()}
    for shift in range(3):
        core = _base64_core(secret.encode(), shift)
        if len(core) >= _SHORTEST_ENCODED:
            forms |= {core, core.replace("+", "-").replace("/", "_")}
    return forms


def _in_json(texts: set[str]) -> set[str]:
    return {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in texts for ascii_only in (True, False)}


def _base64_core(raw: bytes, shift: int) -> str:
    """What base64 of `raw` looks like when it begins `shift` bytes into a group of three, whatever stands around it
    (`user:password` of a basic authentication, or a document)."""
    encoded = base64.b64encode(b"\0" * shift + raw).decode()
    return encoded[-(-shift * 4 // 3) : (shift + len(raw)) * 8 // 6]
