"""Versions of the price of volume storage: each is written once and never changed."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session, col, select

from domain.errors import Conflict, PreconditionFailed
from domain.pricing import effective_at
from store import retired_keys
from store.access import Principal
from store.db import insert_once
from store.tables import IdempotencyKey, StoragePrice
from store.vault import Vault

OPERATION = "put_pricing"


@dataclass(frozen=True, slots=True)
class Claim:
    """The idempotency key of a request, and the canonical body that it stands for."""

    key: str
    canonical_body: bytes
    vault: Vault


def current(session: Session) -> StoragePrice | None:
    """The newest version, in effect or about to be; None before the first."""
    return session.exec(select(StoragePrice).order_by(col(StoragePrice.version).desc()).limit(1)).first()


def put(
    session: Session, principal: Principal, usd_per_gib_hour: Decimal, expected: str, claim: Claim, now: datetime
) -> tuple[StoragePrice, bool]:
    """The next version, if `expected` (an `If-Match` of the caller) names the current one; 0 is that before the first.
    Whether it is a replay: then it is the version that an equal request made, whatever is current now.

    Raises:
        Conflict: the key was used with another body (`idempotency_conflict`).
        PreconditionFailed: another version is current.
    """
    newest = current(session)
    version = newest.version if newest else 0
    named = {"org_id": principal.org_id, "operation": OPERATION, "key": claim.key}
    claimed = insert_once(
        session,
        IdempotencyKey,
        tuple(named),
        **named,
        fingerprint=claim.vault.fingerprint(claim.canonical_body),
        resource_id=str(version + 1),
        created_at=now,
    )
    if not claimed:
        return _replayed(session, named, claim), True
    stale = PreconditionFailed(f"If-Match: {expected[:64]!r} is not the current version, which is {version}")
    if expected not in {str(version), f'"{version}"'}:
        raise stale
    values = {
        "version": version + 1,
        "usd_per_gib_hour": usd_per_gib_hour,
        "effective_at": effective_at(now),
        "created_at": now,
        "key_id": principal.key_id,
    }
    # Of two that name the same version at once, one waits here for the other, and is stale.
    if not insert_once(session, StoragePrice, ("version",), **values):
        raise stale
    return session.get_one(StoragePrice, version + 1), False


def _replayed(session: Session, named: dict[str, str], claim: Claim) -> StoragePrice:
    known = session.exec(select(IdempotencyKey).filter_by(**named)).one()
    if not retired_keys.matches(session, claim.vault, known.fingerprint, claim.canonical_body):
        raise Conflict(
            "this Idempotency-Key was used for another request body; a new price needs a new key",
            code="idempotency_conflict",
        )
    return session.get_one(StoragePrice, int(known.resource_id))
