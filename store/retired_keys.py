"""What outlives a master key: the key of its fingerprints, sealed by the one that is active. Idempotency keys are kept
as long as what they made, so their fingerprints must be comparable for longer than a master key is kept."""

from datetime import datetime

from sqlmodel import Session, select

from store.db import insert_once
from store.tables import RetiredKey
from store.vault import Vault, VaultError


def matches(session: Session, vault: Vault, fingerprint: str, data: bytes) -> bool:
    """`Vault.matches`, for fingerprints of keys too that are no longer configured."""
    if not vault.knows_fingerprint(fingerprint):
        retired = session.get(RetiredKey, fingerprint.partition(":")[0])
        if retired is None:
            return False
        try:
            vault.remember(retired.key_id, vault.open(retired.sealed, context(retired.key_id)))
        except VaultError:
            return False
    return vault.matches(fingerprint, data)


def keep(session: Session, vault: Vault, now: datetime) -> None:
    """Keeps what must outlive the configured keys that are not active. Repeatable."""
    for key_id in vault.key_ids[1:]:
        sealed = vault.seal(vault.fingerprint_key(key_id), context(key_id))
        insert_once(session, RetiredKey, ("key_id",), key_id=key_id, sealed=sealed, retired_at=now)


def kept(session: Session) -> dict[str, datetime]:
    """The keys of which that is kept, and since when."""
    return {row.key_id: row.retired_at for row in session.exec(select(RetiredKey)).all()}


def context(key_id: str) -> str:
    """What the kept part of a key is sealed for."""
    return f"retired-key:{key_id}"
