"""Where the master keys come from: a setting or a file, in clear or encrypted by AWS KMS.

They stand as `id:base64` entries, one a line or separated by commas; the first one is active.
"""

import base64
import os
import re
import secrets
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from domain.errors import HeadraceError

KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class VaultError(HeadraceError):
    """A blob cannot be opened: its key is unknown, or it was changed. Or there is no usable key."""


@dataclass(frozen=True)
class MasterKey:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"MasterKey(id={self.id!r}, secret=***)"


class MasterKeySource(Protocol):
    """A place of master keys."""

    def read(self) -> list[MasterKey]:
        """All keys, the active one first. Raises VaultError when there is none, or one is malformed."""

    def changed(self) -> bool:
        """Whether it may hold other keys than at the last `read`. Cheap."""

    def add(self) -> MasterKey:
        """A new active key, before those that are there. Raises VaultError where it cannot be written."""


class Wrapping(Protocol):
    """How a key is written down."""

    size: int | None
    """Bytes of its written form; None is any."""

    def wrap(self, key: MasterKey) -> bytes: ...

    def unwrap(self, key_id: str, written: bytes) -> bytes: ...


class Plain:
    """A key as it is."""

    size: int | None = KEY_BYTES

    def wrap(self, key: MasterKey) -> bytes:
        return key.secret

    def unwrap(self, key_id: str, written: bytes) -> bytes:
        return written


class AwsKms:
    """A key encrypted by a key of AWS KMS, which never leaves it. Region and credentials are found as boto3 does."""

    size: int | None = None

    def __init__(self, kms_key: str) -> None:
        self._kms_key = kms_key

    def wrap(self, key: MasterKey) -> bytes:
        with _explained(f"{self._kms_key} does not encrypt"):
            answer = self._client().encrypt(
                KeyId=self._kms_key, Plaintext=key.secret, EncryptionContext=_context(key.id)
            )
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, key_id: str, written: bytes) -> bytes:
        with _explained(f"{self._kms_key} does not decrypt the master key {key_id}"):
            answer = self._client().decrypt(
                KeyId=self._kms_key, CiphertextBlob=written, EncryptionContext=_context(key_id)
            )
        return bytes(answer["Plaintext"])

    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise VaultError("HEADRACE_MASTER_KEY_KMS needs boto3: install headrace[aws]") from None
        config = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})
        return boto3.client("kms", config=config)


class _explained:
    """Errors of AWS as ours; they name no key material."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, VaultError):
            raise VaultError(f"AWS KMS: {self._what}: {error}") from error


class SettingKeys:
    """Keys in a setting."""

    def __init__(self, text: str, wrapping: Wrapping) -> None:
        self._text, self._wrapping = text, wrapping

    def read(self) -> list[MasterKey]:
        return parse(self._text, self._wrapping)

    def changed(self) -> bool:
        return False

    def add(self) -> MasterKey:
        raise VaultError("HEADRACE_MASTER_KEY cannot be changed from here")


class FileKeys:
    """Keys in a file. Processes that run notice a changed file once they meet a key that they do not know."""

    def __init__(self, path: Path, wrapping: Wrapping) -> None:
        self._path, self._wrapping = path, wrapping
        self._seen: tuple[int, ...] | None = None

    def read(self) -> list[MasterKey]:
        # Before the reading: a change in between is then noticed later.
        self._seen = self._state()
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            raise VaultError(f"no master key at {self._path}: set HEADRACE_MASTER_KEY, or restore the file") from None
        return parse(text, self._wrapping)

    def changed(self) -> bool:
        return self._state() != self._seen

    def add(self) -> MasterKey:
        known = self.read()
        key = generate()
        assert key.id not in {other.id for other in known}
        self._write(written(key, self._wrapping) + "\n" + self._path.read_text(), os.replace)
        return key

    def create(self) -> None:
        """Writes a first key, readable by its owner only; an existing file is kept."""
        with suppress(FileExistsError):
            self._write(written(generate(), self._wrapping) + "\n", os.link)

    def _write(self, text: str, place: "Placing") -> None:
        """The file appears whole or not at all: half a key, after a crash, would lock everybody out."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{self._path.name}-"
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=prefix)  # made with mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                with suppress(FileNotFoundError):
                    # Whoever could read it still can.
                    os.fchmod(file.fileno(), stat.S_IMODE(self._path.stat().st_mode))
                os.fsync(file.fileno())
            place(temporary, self._path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class Placing(Protocol):
    def __call__(self, source: str, destination: Path, /) -> None: ...


def source_of(text: str | None, path: Path, kms_key: str | None = None) -> SettingKeys | FileKeys:
    """The source that the settings name: `text` where it is set, else `path`; `kms_key` encrypts either."""
    wrapping: Wrapping = Plain() if kms_key is None else AwsKms(kms_key)
    return FileKeys(path, wrapping) if text is None else SettingKeys(text, wrapping)


def parse(text: str, wrapping: Wrapping) -> list[MasterKey]:
    """Reads `id:base64` entries, separated by commas or newlines; the first one is active.

    Raises:
        VaultError: there is none, or one is malformed. Nothing of it is shown: without its colon, all of it is secret.
    """
    entries = [entry.strip() for entry in text.replace("\n", ",").split(",") if entry.strip()]
    keys = []
    for number, entry in enumerate(entries, 1):
        key_id, _, encoded = entry.partition(":")
        try:
            content = base64.b64decode(encoded, validate=True)
        except ValueError:
            content = b""
        wrong = not content or wrapping.size not in {None, len(content)}
        secret = b"" if wrong or not _KEY_ID.fullmatch(key_id) else wrapping.unwrap(key_id, content)
        if len(secret) != KEY_BYTES:
            raise VaultError(f"master key {number} of {len(entries)}: wanted id:base64 of {KEY_BYTES} bytes")
        keys.append(MasterKey(key_id, secret))
    if len({key.id for key in keys}) < len(keys):
        raise VaultError("two master keys have the same id: give each its own")
    if not keys:
        raise VaultError("no master key: set HEADRACE_MASTER_KEY or HEADRACE_MASTER_KEY_FILE")
    return keys


def generate() -> MasterKey:
    """A new master key."""
    return MasterKey(f"k{secrets.token_hex(4)}", secrets.token_bytes(KEY_BYTES))


def written(key: MasterKey, wrapping: Wrapping) -> str:
    """The entry of a key, as `parse` reads it."""
    return f"{key.id}:{base64.b64encode(wrapping.wrap(key)).decode()}"


def _context(key_id: str) -> dict[str, str]:
    """What a key's ciphertext is bound to: under another id, or as another thing, it does not open."""
    return {"headrace:master-key": key_id}
