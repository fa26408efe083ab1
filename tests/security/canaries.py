"""Canary secrets: planted where a user puts a secret, then looked for in every form, everywhere that they must not be.

canary = Canary.fresh("env")
with ProcessWatch([canary]) as watch:      # samples /proc/*/cmdline meanwhile
    ...                                    # run a job whose env holds canary.text
assert not watch.sightings
assert not search_tree([canary], data_dir) + search_texts([canary], {"history": exported})
"""

import base64
import gzip
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, quote_plus

import zstandard

_LONGEST_FILE = 256 * 1024 * 1024
_ZSTD_MAGIC, _GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Canary:
    """`name` tells where it was planted; `text` is the secret itself."""

    name: str
    text: str

    @classmethod
    def fresh(cls, name: str) -> "Canary":
        """A secret that looks different in every encoding: quotes, a slash, a plus, a space, a non-ASCII letter."""
        return cls(name, f'cn-{secrets.token_hex(8)}/+"\\ é-{secrets.token_hex(8)}')

    def forms(self) -> dict[str, bytes]:
        """Every form in which it could be written down, by the name of the encoding."""
        raw = self.text.encode()
        forms = {
            "plain": raw,
            "url": quote(self.text, safe="").encode(),
            "url path": quote(self.text).encode(),
            "form": quote_plus(self.text).encode(),
            "json": json.dumps(self.text)[1:-1].encode(),
            "json utf-8": json.dumps(self.text, ensure_ascii=False)[1:-1].encode(),
            "json in json": json.dumps(json.dumps(self.text)[1:-1])[1:-1].encode(),
            "repr": repr(self.text)[1:-1].encode(),
            "hex": raw.hex().encode(),
            "hex upper": raw.hex().upper().encode(),
        }
        for shift in range(3):
            encoded = _base64_core(raw, shift)
            forms[f"base64 at {shift}"] = encoded
            forms[f"base64url at {shift}"] = encoded.translate(bytes.maketrans(b"+/", b"-_"))
        # The two random halves also tell of an encoding that was not thought of here.
        for number, part in enumerate(re.findall(r"[0-9a-f]{16}", self.text)):
            forms[f"part {number}"] = part.encode()
        return forms


@dataclass(frozen=True, slots=True)
class Sighting:
    """A canary where it must not be. Its text is not repeated, for this is printed."""

    canary: str
    form: str
    where: str


def search_bytes(canaries: Iterable[Canary], data: bytes, where: str) -> list[Sighting]:
    """Looks through `data`, and through what it unpacks to if it is compressed."""
    found = [
        Sighting(canary.name, form, where)
        for canary in canaries
        for form, needle in canary.forms().items()
        if needle in data
    ]
    unpacked = _unpack(data)
    return found + (search_bytes(canaries, unpacked, f"{where} (unpacked)") if unpacked else [])


def search_texts(canaries: Sequence[Canary], texts: Mapping[str, str | bytes]) -> list[Sighting]:
    """Looks through texts (answers, pages, exports, dumps), each with a name."""
    found: list[Sighting] = []
    for where, text in texts.items():
        found += search_bytes(canaries, text if isinstance(text, bytes) else text.encode(), where)
    return found


def search_tree(canaries: Sequence[Canary], root: Path, *, but: Sequence[str] = ()) -> list[Sighting]:
    """Looks through every file below `root`, and the files' names, but those that match a glob of `but`."""
    found: list[Sighting] = []
    for path in sorted(root.rglob("*")):
        if any(path.match(pattern) for pattern in but):
            continue
        found += search_bytes(canaries, os.fsencode(path.name), f"the name of {path}")
        if path.is_file() and not path.is_symlink():
            if path.stat().st_size > _LONGEST_FILE:
                raise AssertionError(f"{path} is too large to be searched whole")
            found += search_bytes(canaries, path.read_bytes(), str(path))
    return found


def search_processes(canaries: Sequence[Canary]) -> list[Sighting]:
    """Looks through the command lines of all processes on this machine, once."""
    found: list[Sighting] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            # Arguments end in NUL; joined by spaces, a secret that was split over two of them is found too.
            line = path.read_bytes()
        except OSError:
            continue
        found += search_bytes(canaries, line + b"\n" + line.replace(b"\0", b" "), f"a command line ({path})")
    return found


class ProcessWatch:
    """Samples all command lines, as often as one thread can, between entering and leaving."""

    def __init__(self, canaries: Sequence[Canary], *, pause_seconds: float = 0.005) -> None:
        self.sightings: set[Sighting] = set()
        self.samples = 0
        self._canaries, self._pause = canaries, pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-watch", daemon=True)

    def __enter__(self) -> "ProcessWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.sightings |= set(search_processes(self._canaries))
            self.samples += 1
            if self._stop.wait(self._pause):
                return


def _base64_core(raw: bytes, shift: int) -> bytes:
    """What base64 of `raw` looks like when it begins `shift` bytes into a group of three, whatever stands around it."""
    encoded = base64.b64encode(b"\0" * shift + raw)
    first = -(-shift * 4 // 3)
    last = (shift + len(raw)) * 8 // 6
    return encoded[first:last]


def _unpack(data: bytes) -> bytes | None:
    try:
        if data.startswith(_ZSTD_MAGIC):
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        if data.startswith(_GZIP_MAGIC):
            return gzip.decompress(data)
    except (zstandard.ZstdError, OSError, EOFError, zlib.error):
        return None
    return None
