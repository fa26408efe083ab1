"""The vault: AES-GCM sealing with key ids for rotation, HMACs, and agent tokens. Keys live outside the database."""

import base64
import hmac
import os
import re
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from domain.errors import HeadraceError
from domain.ids import AttemptId

_KEY_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class VaultError(HeadraceError):
    """A blob cannot be opened: its key is unknown, or it was changed."""


@dataclass(frozen=True)
class MasterKey:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"MasterKey(id={self.id!r}, secret=***)"


class Vault:
    """Seals with the first key, opens with any. A sealed blob is: key id length, key id, nonce, ciphertext and tag."""

    def __init__(self, keys: list[MasterKey]) -> None:
        if not keys:
            raise VaultError("no master key: set HEADRACE_MASTER_KEY or HEADRACE_MASTER_KEY_FILE")
        self._active = keys[0]
        self._keys = {key.id: key for key in keys}

    @classmethod
    def parse(cls, text: str) -> "Vault":
        """Reads `id:base64` entries, separated by commas or newlines; the first one is active."""
        entries = [entry.strip() for entry in text.replace("\n", ",").split(",") if entry.strip()]
        keys = []
        for number, entry in enumerate(entries, 1):
            key_id, _, encoded = entry.partition(":")
            try:
                secret = base64.b64decode(encoded, validate=True)
            except ValueError:
                secret = b""
            if not _KEY_ID.fullmatch(key_id) or len(secret) != _KEY_BYTES:
                # Nothing of the entry is shown: without its colon, all of it is secret.
                raise VaultError(f"master key {number} of {len(entries)}: wanted id:base64 of {_KEY_BYTES} bytes")
            keys.append(MasterKey(key_id, secret))
        if len({key.id for key in keys}) < len(keys):
            raise VaultError("two master keys have the same id: give each its own")
        return cls(keys)

    @staticmethod
    def generate() -> str:
        """A new master key in the form that `parse` reads."""
        return f"k{secrets.token_hex(4)}:{base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"

    @classmethod
    def load(cls, text: str | None, path: Path) -> "Vault":
        """From the setting, else from `path`.

        Raises:
            VaultError: there is no such file, or no key in it.
        """
        if text is None:
            try:
                text = path.read_text()
            except FileNotFoundError:
                raise VaultError(f"no master key at {path}: set HEADRACE_MASTER_KEY, or restore the file") from None
        return cls.parse(text)

    @property
    def active_key_id(self) -> str:
        return self._active.id

    def seal(self, plaintext: bytes, context: str) -> bytes:
        """Encrypts and authenticates; `context` (what the blob is, of which row) must be the same at opening."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        key_id = self._active.id.encode()
        ciphertext = AESGCM(self._active.secret).encrypt(nonce, plaintext, context.encode())
        return bytes([len(key_id)]) + key_id + nonce + ciphertext

    def open(self, blob: bytes, context: str) -> bytes:
        """Decrypts what `seal` made.

        Raises:
            VaultError: unknown key id, another context, or a blob that was changed.
        """
        length = blob[0] if blob else 0
        key = self._keys.get(blob[1 : 1 + length].decode(errors="replace"))
        if key is None:
            raise VaultError("sealed with a master key that is not configured")
        nonce, ciphertext = blob[1 + length : 1 + length + _NONCE_BYTES], blob[1 + length + _NONCE_BYTES :]
        try:
            return AESGCM(key.secret).decrypt(nonce, ciphertext, context.encode())
        except (InvalidTag, ValueError):  # ValueError: cut too short to hold a nonce
            raise VaultError(f"{context}: the sealed value was changed, or belongs elsewhere") from None

    def fingerprint(self, data: bytes) -> str:
        """A keyed hash (hex) for comparing values that may hold a password. Stable while the key is configured."""
        return f"{self._active.id}:{self._mac(self._active, b'fingerprint', data).hex()}"

    def matches(self, fingerprint: str, data: bytes) -> bool:
        """Whether `fingerprint` was made of `data`, by whichever configured key."""
        key = self._keys.get(fingerprint.partition(":")[0])
        return key is not None and hmac.compare_digest(
            fingerprint, f"{key.id}:{self._mac(key, b'fingerprint', data).hex()}"
        )

    def bootstrap_token(self, attempt_id: AttemptId) -> str:
        """The agent's first credential: derived, so that it is the same on every retry and never stored."""
        return f"hrb.{attempt_id}.{_text(self._mac(self._active, b'bootstrap', attempt_id.encode()))}"

    def session_token(self, attempt_id: AttemptId, nonce: str) -> str:
        """What a bootstrap token is exchanged for: bound to the nonce of the agent that asked first."""
        return f"hrs.{attempt_id}.{_text(self._mac(self._active, b'session', f'{attempt_id}.{nonce}'.encode()))}"

    def attempt_of(self, bootstrap_token: str) -> AttemptId | None:
        """The attempt that a bootstrap token belongs to; None when no configured key made it."""
        prefix, _, rest = bootstrap_token.partition(".")
        attempt, _, mac = rest.partition(".")
        for key in self._keys.values():
            wanted = _text(self._mac(key, b"bootstrap", attempt.encode()))
            if prefix == "hrb" and hmac.compare_digest(mac.encode(), wanted.encode()):
                return AttemptId(attempt)
        return None

    @staticmethod
    def _mac(key: MasterKey, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(hmac.digest(key.secret, purpose, sha256), data, sha256)


def _text(mac: bytes) -> str:
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def create_key_file(path: Path) -> None:
    """Writes a new master key, readable by its owner only; an existing file is kept.

    The file appears whole or not at all: half a key, after a crash, would lock everybody out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:  # made with mode 0600
        file.write(Vault.generate() + "\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)


def hash_token(token: str) -> str:
    """SHA-256 (hex) of a bearer token with 256 random bits."""
    return sha256(token.encode()).hexdigest()
