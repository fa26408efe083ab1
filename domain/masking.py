"""Takes secrets out of text that may repeat them, in whatever encoding: a backend's complaint, a workload's output."""

import base64
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

MASK = "***"
MIN_MASKED_CHARACTERS = 6
"""In output a shorter value stays: `1` or `true` is part of everything."""

# A shorter core of base64 could be a part of anything.
_SHORTEST_ENCODED = 6
# What the tools that encode break their lines at: base64(1) and PEM.
_LINE_LENGTHS = (76, 64)
_HEX_LINE_LENGTH = 60
"""xxd(1)'s."""
_LONGEST_WRAPPED = 8192

_BEGINNING = MIN_MASKED_CHARACTERS
"""Bytes by which a form is looked for: every form in output has as many."""
# So many beginnings a regular expression looks for faster than a search at each byte.
_FEW = 64
# Of forms that begin with each other: more of them would be tried one by one wherever they might stand.
_MOST_NESTED = 16
_FORM_OVERHEAD = 200


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of `secrets`, however they are written in it."""
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    # The longest first: one form can hold another.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


@dataclass(frozen=True, slots=True)
class _Group:
    """The forms that share their first bytes, sorted, and the length of the longest."""

    forms: tuple[bytes, ...]
    longest: int


class StreamMask:
    """Masks a stream of bytes that comes in chunks: the result does not depend on where they were cut.

    Best effort: it knows the values, their base64 at any alignment, and how JSON, URLs and hex write them. What a chunk
    takes hardly depends on how many forms there are: whoever has a secret of thousands of lines stores no log slower.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        # What a form begins with that is a form itself, which is tried when the longer one does not fit.
        self._shorter: dict[bytes, bytes | None] = {}
        grouped: dict[bytes, list[bytes]] = defaultdict(list)
        chain: list[bytes] = []
        for form in sorted({form.encode() for secret in secrets for form in _line_forms(secret)}):
            while chain and not form.startswith(chain[-1]):
                chain.pop()
            if len(chain) < _MOST_NESTED:
                self._shorter[form] = chain[-1] if chain else None
                grouped[form[:_BEGINNING]].append(form)
                chain.append(form)
        self._groups = {name: _Group(tuple(forms), max(map(len, forms))) for name, forms in grouped.items()}
        self._shortest_beginnings = {name[:length] for name in self._groups for length in range(1, _BEGINNING)}
        self._few = re.compile(b"|".join(map(re.escape, self._groups))) if len(self._groups) <= _FEW else None
        self.size = sum(len(form) + _FORM_OVERHEAD for form in self._shorter)
        """Bytes that it holds, for whoever keeps several."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __repr__(self) -> str:
        return f"StreamMask({len(self._shorter)} forms)"

    def feed(self, data: bytes, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The masked beginning of `data`, and its end that may be the beginning of a secret: to be put before what
        comes next. That end has no line feed, so every whole line is out; it is empty when the stream `ends`."""
        if not self._groups:
            return data, b""
        parts: list[bytes] = []
        position = at = 0
        while (at := self._candidate(data, at)) >= 0:
            # Of two secrets that begin here the longer one may still be coming.
            if not ends and self._may_go_on(data, at):
                break
            form = self._form_at(data, at)
            if form is None:
                at += 1
                continue
            parts += (data[position:at], MASK.encode())
            position = at = at + len(form)
        held = at
        if held < 0:
            last = range(max(position, len(data) - _BEGINNING + 1), len(data))
            held = next((i for i in last if not ends and data[i:] in self._shortest_beginnings), len(data))
        return b"".join([*parts, data[position:held]]), data[held:]

    def mask(self, text: str) -> str:
        """A whole text, masked."""
        masked, _ = self.feed(text.encode("utf-8", "surrogatepass"), ends=True)
        return masked.decode("utf-8", "replace")

    def _candidate(self, data: bytes, start: int) -> int:
        """The first place from `start` on with the first bytes of a form; -1 when there is none."""
        if self._few is not None:
            found = self._few.search(data, start)
            return -1 if found is None else found.start()
        places = range(start, len(data) - _BEGINNING + 1)
        return next((at for at in places if data[at : at + _BEGINNING] in self._groups), -1)

    def _may_go_on(self, data: bytes, at: int) -> bool:
        """Whether all that follows is the beginning of a form that is longer."""
        group = self._groups[data[at : at + _BEGINNING]]
        if len(data) - at >= group.longest:
            return False
        rest = data[at:]
        following = bisect_right(group.forms, rest)
        return following < len(group.forms) and group.forms[following].startswith(rest)

    def _form_at(self, data: bytes, at: int) -> bytes | None:
        """The longest form that stands there."""
        group = self._groups[data[at : at + _BEGINNING]]
        # It is the last one that sorts before what stands there, or one with which that begins.
        before = bisect_right(group.forms, data[at : at + group.longest]) - 1
        form = group.forms[before] if before >= 0 else None
        while form is not None and not data.startswith(form, at):
            form = self._shorter[form]
        return form


def _line_forms(secret: str) -> set[str]:
    """The forms that a line of output can hold: of a text of several lines each of them, and the whole encoded."""
    forms: set[str] = set()
    if len(secret.strip()) >= MIN_MASKED_CHARACTERS:
        forms |= {form for form in _forms(secret) if "\n" not in form and "\r" not in form}
        encoded = base64.b64encode(secret.encode()).decode()
        for length in _LINE_LENGTHS:
            forms |= _wrapped(encoded, length)
        forms |= _wrapped(secret.encode().hex(), _HEX_LINE_LENGTH)
    for line in secret.splitlines():
        forms |= {line, line.strip()}
    return {form for form in forms if len(form) >= MIN_MASKED_CHARACTERS}


def _wrapped(encoded: str, length: int) -> set[str]:
    """The lines of a text that a tool breaks at `length`; none where it is one line."""
    if not length < len(encoded) <= _LONGEST_WRAPPED:
        return set()
    return {encoded[at : at + length] for at in range(0, len(encoded), length)}


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
