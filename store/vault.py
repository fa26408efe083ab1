"""The vault: AES-GCM sealing with key ids for rotation, HMACs, and agent tokens. Keys live outside the database."""

import base64
import hmac
import secrets
from hashlib import sha256
from pathlib import Path
from threading import Lock

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from domain.ids import AttemptId
from store.master_key import (
    FileKeys,
    MasterKey,
    MasterKeySource,
    Plain,
    VaultError,
    generate,
    parse,
    source_of,
    written,
)

__all__ = ["MasterKey", "Vault", "VaultError", "create_key_file", "hash_token", "key_id_of", "sealed_prefix"]

_NONCE_BYTES = 12


class Vault:
    """Seals with the first key, opens with any. A sealed blob is: key id length, key id, nonce, ciphertext and tag.

    With a `source` it reads the keys anew when it meets an unknown one and the source has changed: processes that run
    take part in a rotation without a restart.
    """

    def __init__(self, keys: list[MasterKey], source: MasterKeySource | None = None) -> None:
        self._source, self._reading = source, Lock()
        self._retired: dict[str, bytes] = {}
        self._take(keys)

    def _take(self, keys: list[MasterKey]) -> None:
        self._keys = {key.id: key for key in keys}
        self._active = keys[0]

    @classmethod
    def parse(cls, text: str) -> "Vault":
        """Reads `id:base64` entries, separated by commas or newlines; the first one is active."""
        return cls(parse(text, Plain()))

    @staticmethod
    def generate() -> str:
        """A new master key in the form that `parse` reads."""
        return written(generate(), Plain())

    @classmethod
    def load(cls, text: str | None, path: Path, kms_key: str | None = None) -> "Vault":
        """From the setting, else from `path`; `kms_key` is the key of AWS KMS that encrypts them, None is in clear.

        Raises:
            VaultError: there is no such file, or no key in it, or KMS refuses.
        """
        return cls.of(source_of(text, path, kms_key))

    @classmethod
    def of(cls, source: MasterKeySource) -> "Vault":
        """With the keys of `source`. Raises as `load` does."""
        return cls(source.read(), source)

    @property
    def active_key_id(self) -> str:
        return self._active.id

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Of the configured keys, the active one first."""
        return (self._active.id, *(key_id for key_id in self._keys if key_id != self._active.id))

    def seal(self, plaintext: bytes, context: str) -> bytes:
        """Encrypts and authenticates; `context` (what the blob is, of which row) must be the same at opening."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        key = self._active
        ciphertext = AESGCM(key.secret).encrypt(nonce, plaintext, context.encode())
        return sealed_prefix(key.id) + nonce + ciphertext

    def open(self, blob: bytes, context: str) -> bytes:
        """Decrypts what `seal` made.

        Raises:
            VaultError: unknown key id, another context, or a blob that was changed.
        """
        key = self._key(key_id_of(blob))
        if key is None:
            raise VaultError("sealed with a master key that is not configured")
        length = blob[0]
        nonce, ciphertext = blob[1 + length : 1 + length + _NONCE_BYTES], blob[1 + length + _NONCE_BYTES :]
        try:
            return AESGCM(key.secret).decrypt(nonce, ciphertext, context.encode())
        except (InvalidTag, ValueError):  # ValueError: cut too short to hold a nonce
            raise VaultError(f"{context}: the sealed value was changed, or belongs elsewhere") from None

    def fingerprint(self, data: bytes) -> str:
        """A keyed hash (hex) for comparing values that may hold a password. It names its key."""
        return f"{self._active.id}:{_mac(self.fingerprint_key(self._active.id), data).hex()}"

    def fingerprint_key(self, key_id: str) -> bytes:
        """What the fingerprints of a configured key are made with: all that has to outlive that key.

        Raises:
            VaultError: it is not configured.
        """
        key = self._key(key_id)
        if key is None:
            raise VaultError(f"the master key {key_id!r} is not configured")
        return _mac(key.secret, b"fingerprint")

    def knows_fingerprint(self, fingerprint: str) -> bool:
        """Whether `matches` can tell; otherwise the key that made it is to be looked for (`store.retired_keys`)."""
        key_id = fingerprint.partition(":")[0]
        return key_id in self._retired or self._key(key_id) is not None

    def remember(self, key_id: str, fingerprint_key: bytes) -> None:
        """Lets `matches` tell of the fingerprints of a key that was taken away."""
        self._retired[key_id] = fingerprint_key

    def matches(self, fingerprint: str, data: bytes) -> bool:
        """Whether `fingerprint` was made of `data`, by whichever key that is configured or remembered."""
        key_id = fingerprint.partition(":")[0]
        if not self.knows_fingerprint(fingerprint):
            return False
        key = self._retired.get(key_id) or self.fingerprint_key(key_id)
        return hmac.compare_digest(fingerprint, f"{key_id}:{_mac(key, data).hex()}")

    def bootstrap_token(self, attempt_id: AttemptId) -> str:
        """The agent's first credential: derived, so that it is the same on every retry and never stored."""
        return f"hrb.{attempt_id}.{_text(_purposed(self._active, b'bootstrap', attempt_id.encode()))}"

    def session_token(self, attempt_id: AttemptId, nonce: str) -> str:
        """What a bootstrap token is exchanged for: bound to the nonce of the agent that asked first."""
        return f"hrs.{attempt_id}.{_text(_purposed(self._active, b'session', f'{attempt_id}.{nonce}'.encode()))}"

    def attempt_of(self, bootstrap_token: str) -> AttemptId | None:
        """The attempt that a bootstrap token belongs to; None when no configured key made it."""
        prefix, _, rest = bootstrap_token.partition(".")
        attempt, _, mac = rest.partition(".")
        if prefix != "hrb":
            return None
        while True:
            for key in self._keys.values():
                wanted = _text(_purposed(key, b"bootstrap", attempt.encode()))
                if hmac.compare_digest(mac.encode(), wanted.encode()):
                    return AttemptId(attempt)
            if not self._read_anew():
                return None

    def _key(self, key_id: str) -> MasterKey | None:
        key = self._keys.get(key_id)
        return self._keys.get(key_id) if key is None and self._read_anew() else key

    def _read_anew(self) -> bool:
        """Whether there may be keys that were unknown until now. A file that cannot be read leaves those that are
        known."""
        if self._source is None or not self._source.changed():
            return False
        with self._reading:
            if not self._source.changed():
                # Another thread was first.
                return True
            try:
                self._take(self._source.read())
            except (VaultError, OSError):
                return False
            return True


def key_id_of(blob: bytes) -> str:
    """The id of the key that sealed `blob`; text that is no key's id for what was never sealed."""
    length = blob[0] if blob else 0
    return blob[1 : 1 + length].decode(errors="replace")


def sealed_prefix(key_id: str) -> bytes:
    """What every blob that this key sealed begins with."""
    return bytes([len(key_id.encode())]) + key_id.encode()


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, sha256)


def _purposed(key: MasterKey, purpose: bytes, data: bytes) -> bytes:
    """Each purpose has a key of its own."""
    return _mac(_mac(key.secret, purpose), data)


def _text(mac: bytes) -> str:
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def create_key_file(path: Path, kms_key: str | None = None) -> None:
    """Writes a new master key, readable by its owner only; an existing file is kept."""
    source = source_of(None, path, kms_key)
    assert isinstance(source, FileKeys)
    source.create()


def hash_token(token: str) -> str:
    """SHA-256 (hex) of a bearer token with 256 random bits."""
    return sha256(token.encode()).hexdigest()
