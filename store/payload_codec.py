"""Temporal payloads, encrypted: the Temporal server and its database hold ciphertext of arguments, results, summaries,
current details, heartbeat details and failure messages. Search attributes are not payloads of ours: they stay readable.
"""

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from store.vault import Vault, VaultError

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
"""Metadata that names the master key, so that an operator sees which histories still need an old one."""

_CONTEXT = "temporal-payload"


class EncryptingCodec(PayloadCodec):
    """Seals whole payloads, their metadata included. A payload that is not ours is passed through when decoding."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._seal(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Raises VaultError when a payload's key is not configured, or the payload was changed."""
        return self.open_all(payloads)

    def open_all(self, payloads: Iterable[Payload]) -> list[Payload]:
        """`decode`, for callers without an event loop."""
        return [self._open(payload) for payload in payloads]

    def _seal(self, payload: Payload) -> Payload:
        return Payload(
            metadata={"encoding": ENCODING, KEY_ID: self._vault.active_key_id.encode()},
            data=self._vault.seal(payload.SerializeToString(), _CONTEXT),
        )

    def _open(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        try:
            return Payload.FromString(self._vault.open(payload.data, _CONTEXT))
        except VaultError as error:
            key_id = payload.metadata.get(KEY_ID, b"?").decode(errors="replace")[:64]
            raise VaultError(f"payload sealed with master key {key_id!r}: {error}") from None
        except DecodeError as error:
            raise VaultError("a sealed payload does not hold a Temporal payload") from error
