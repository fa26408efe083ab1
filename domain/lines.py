"""Lines out of bytes: any byte, any length, any chunking, the same lines.

A line feed ends a line, with or without a carriage return before it. A carriage return inside a line overwrites it, as
on a terminal: of a progress bar only the last state is kept, and while the bar runs a snapshot of it appears now and
then. NUL and invalid UTF-8 become U+FFFD. A line longer than `MAX_LINE_BYTES` is cut into rows that say that they go
on, so memory stays bounded.
"""

import codecs
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

MAX_LINE_BYTES = 65_536
"""A longer line becomes several rows. Of the bytes as they came: U+FFFD for invalid ones makes the text longer."""

FIRST_SNAPSHOT = timedelta(seconds=1)
"""How long a line is in progress before its first snapshot: a CRLF cut in two, or a quick bar, gets none."""

SNAPSHOT_INTERVAL = timedelta(seconds=2)
"""The least time between two snapshots of one stream."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Progress bars clear the line with blanks or with the terminal's "erase in line".
_BLANK = re.compile(rb"(?:\s|\x1b\[\d*K)*+")
_PACKED = struct.Struct("<BIIiqq")
_VERSION = 1
_NONE = -1


@dataclass(slots=True)
class MadeLines:
    """`texts` in order; `continued` holds the indexes of those whose line goes on in the next text."""

    texts: list[str] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)

    def extend(self, more: "MadeLines") -> None:
        """Adds what was made after these."""
        self.continued += [len(self.texts) + index for index in more.continued]
        self.texts += more.texts


class LineMaker:
    """Makes the lines of one stream. Its state is small (under 256 KiB) and can be packed between two chunks."""

    def __init__(self) -> None:
        self._current = b""
        """What came since the last end of line, carriage return or cut."""
        self._held = b""
        """What the line showed before its last carriage return."""
        self._shown: bytes | None = None
        """The line's last snapshot, None before the first."""
        self._in_progress_since: datetime | None = None
        """When the line's first carriage return came."""
        self._last_snapshot_at: datetime | None = None

    def feed(self, data: bytes, now: datetime) -> MadeLines:
        """The rows that `data` completes, and a snapshot of the unfinished line when one is due."""
        made = MadeLines()
        head, newline, rest = data.partition(b"\n")
        self._add(head, made, now)
        if newline:
            self._end_line(made)
            end = rest.rfind(b"\n") + 1
            if end:
                self._add_whole_lines(rest[:end], made, now)
            self._add(rest[end:], made, now)
        self._snapshot(made, now)
        return made

    def tick(self, now: datetime) -> MadeLines:
        """The snapshot of the unfinished line if it is due, although nothing came."""
        made = MadeLines()
        self._snapshot(made, now)
        return made

    def finish(self) -> MadeLines:
        """The last line, if it has no newline. The maker is as new afterwards."""
        made = MadeLines()
        if self._current or self._held:
            self._end_line(made)
        return made

    @property
    def snapshot_due_at(self) -> datetime | None:
        """When `tick` will have something to show; None while there is nothing new."""
        if self._in_progress_since is None:
            return None
        visible = self._visible()
        if _is_blank(visible) or visible == self._shown:
            return None
        due = self._in_progress_since + FIRST_SNAPSHOT
        return max(due, self._last_snapshot_at + SNAPSHOT_INTERVAL) if self._last_snapshot_at else due

    def _add_whole_lines(self, data: bytes, made: MadeLines, now: datetime) -> None:
        """`data` starts and ends at a line's boundary: nearly all output comes through here, without a loop."""
        data = data.replace(b"\r\n", b"\n")[:-1]
        lines = data.split(b"\n")
        if b"\r" not in data and max(map(len, lines)) <= MAX_LINE_BYTES:
            made.texts += _text(data).split("\n")
            return
        if max(map(len, lines)) <= MAX_LINE_BYTES:
            # Each of them begins and ends here: none needs the state of the one before.
            made.texts += _text(b"\n".join(map(_last_state, lines))).split("\n")
            return
        for line in lines:
            self._add(line, made, now)
            self._end_line(made)

    def _add(self, part: bytes, made: MadeLines, now: datetime) -> None:
        """More of the current line; `part` has no newline."""
        first, *states = part.split(b"\r")
        self._extend(first, made)
        if not states:
            return
        self._in_progress_since = self._in_progress_since or now
        if max(map(len, states)) > MAX_LINE_BYTES:
            for state in states:
                self._keep((self._current,))
                self._current = b""
                self._extend(state, made)
        else:
            self._keep((*states[-2::-1], self._current))
            self._current = states[-1]

    def _extend(self, part: bytes, made: MadeLines) -> None:
        self._current += part
        while len(self._current) > MAX_LINE_BYTES:
            # What the decoder holds back is the start of a character: it opens the next row.
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(self._current[:MAX_LINE_BYTES])
            self._current = decoder.getstate()[0] + self._current[MAX_LINE_BYTES:]
            made.continued.append(len(made.texts))
            made.texts.append(text.replace("\0", "\ufffd"))
            self._held, self._shown = b"", None

    def _keep(self, newest_first: Iterable[bytes]) -> None:
        """Remembers the newest state that shows something; a blank one only if there is nothing better."""
        blank = b""
        for state in filter(None, newest_first):
            if not _is_blank(state):
                self._held = state
                return
            blank = blank or state
        if blank and _is_blank(self._held):
            self._held = blank

    def _end_line(self, made: MadeLines) -> None:
        self._keep((self._current,))
        if self._held != self._shown:
            made.texts.append(_text(self._held))
        self._current = self._held = b""
        self._shown = self._in_progress_since = None

    def _visible(self) -> bytes:
        return self._held if _is_blank(self._current) else self._current

    def _snapshot(self, made: MadeLines, now: datetime) -> None:
        due = self.snapshot_due_at
        if due is not None and due <= now:
            self._shown = self._visible()
            self._last_snapshot_at = now
            made.texts.append(_text(self._shown))

    def pack(self) -> bytes:
        """The state, for `unpack`."""
        shown = self._shown
        header = _PACKED.pack(
            _VERSION,
            len(self._current),
            len(self._held),
            _NONE if shown is None else len(shown),
            _to_microseconds(self._in_progress_since),
            _to_microseconds(self._last_snapshot_at),
        )
        return header + self._current + self._held + (shown or b"")

    @classmethod
    def unpack(cls, packed: bytes | None) -> "LineMaker":
        """The maker whose `pack` this is; a new one for None. Raises ValueError for anything else."""
        maker = cls()
        if packed is None:
            return maker
        if len(packed) < _PACKED.size or packed[0] != _VERSION:
            raise ValueError("this is not the packed state of a line maker")
        _, current, held, shown, since, snapshot = _PACKED.unpack_from(packed)
        position = _PACKED.size
        maker._current = packed[position : position + current]
        position += current
        maker._held = packed[position : position + held]
        position += held
        maker._shown = None if shown == _NONE else packed[position : position + shown]
        maker._in_progress_since = _from_microseconds(since)
        maker._last_snapshot_at = _from_microseconds(snapshot)
        return maker


def _last_state(line: bytes) -> bytes:
    """What a whole line shows in the end: its newest state that shows something, else its newest that is not empty."""
    _, _, state = line.rpartition(b"\r")
    if b"\r" not in line or (b"\x1b" not in state and state.strip()):
        return state
    states = [state for state in reversed(line.split(b"\r")) if state]
    return next((state for state in states if not _is_blank(state)), states[0] if states else b"")


def _is_blank(state: bytes) -> bool:
    return _BLANK.fullmatch(state) is not None


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").replace("\0", "\ufffd")


def _to_microseconds(instant: datetime | None) -> int:
    return _NONE if instant is None else (instant - _EPOCH) // _MICROSECOND


def _from_microseconds(value: int) -> datetime | None:
    return None if value == _NONE else _EPOCH + timedelta(microseconds=value)
