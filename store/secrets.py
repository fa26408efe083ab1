"""Stored secrets of an organization, and their uses by live jobs. All of it runs inside `Database.read` or `write`.

A create locks the secrets that its job refers to (shared), a rotation and a deletion lock theirs (alone): whoever comes
second sees what the first has committed. All of an organization's keys share its secrets, those of a project too.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import orjson
from sqlalchemy import func, tuple_
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.ids import new_id
from domain.secrets import Reference, require_keys_kept
from store.access import Principal
from store.db import insert_once
from store.tables import Secret, SecretUse
from store.tenants import require_enabled_in
from store.vault import Vault


@dataclass(frozen=True, slots=True)
class Values:
    """The new values of a secret, and until when they resolve; None is for ever."""

    data: Mapping[str, str] = field(repr=False)
    expires_at: datetime | None = None

    def seal(self, vault: Vault, secret_id: str, version: int) -> bytes:
        return vault.seal(orjson.dumps(dict(self.data)), context(secret_id, version))


def context(secret_id: str, version: int) -> str:
    """What a secret's sealed values are bound to."""
    return f"secret:{secret_id}:{version}"


def opened(vault: Vault, secret: Secret) -> dict[str, str]:
    """The values of a secret by their keys.

    Raises:
        VaultError: its master key is not configured.
    """
    values: dict[str, str] = orjson.loads(vault.open(secret.sealed, context(secret.id, secret.version)))
    return values


def create(
    session: Session,
    principal: Principal,
    name: str,
    values: Values,
    vault: Vault,
    now: datetime,
    on_behalf_of: str | None = None,
) -> Secret:
    """A new secret, version 1.

    Raises:
        Forbidden: the organization is not enabled (`tenant_disabled`).
        Conflict: the organization has a secret of that name (`secret_name_conflict`).
    """
    require_enabled_in(session, principal.org_id)
    secret = Secret(
        id=new_id("sec"),
        org_id=principal.org_id,
        name=name,
        key_names=sorted(values.data),
        version=1,
        sealed=b"",
        expires_at=values.expires_at,
        key_id=principal.key_id,
        on_behalf_of=on_behalf_of,
        created_at=now,
        updated_at=now,
    )
    secret.sealed = values.seal(vault, secret.id, 1)
    if not insert_once(session, Secret, ("org_id", "name"), **secret.model_dump()):
        raise Conflict(
            "name: this organization has a secret of that name: rotate it, or choose another name",
            code="secret_name_conflict",
            details={"field": "name"},
        )
    return secret


def rotate(
    session: Session, principal: Principal, secret_id: str, values: Values, vault: Vault, now: datetime
) -> Secret:
    """Replaces all values under the same id.

    Raises:
        NotFound: the organization has no such secret.
        Forbidden: the organization is not enabled (`tenant_disabled`).
        Conflict: a live job refers to a key that the new version lacks (`secret_key_in_use`).
    """
    secret = _locked(session, principal, secret_id)
    require_enabled_in(session, principal.org_id)
    require_keys_kept(secret.id, values.data.keys(), _used_keys(session, secret.id))
    secret.version += 1
    secret.key_names = sorted(values.data)
    secret.sealed = values.seal(vault, secret.id, secret.version)
    secret.expires_at = values.expires_at
    secret.updated_at = now
    session.add(secret)
    return secret


def remove(session: Session, principal: Principal, secret_id: str) -> Secret:
    """Deletes the secret and its values; answers what it was.

    Raises:
        NotFound: the organization has no such secret.
        Conflict: a live job uses it (`secret_in_use`).
    """
    secret = _locked(session, principal, secret_id)
    used = session.exec(select(SecretUse.job_id).where(SecretUse.secret_id == secret.id).limit(10)).all()
    if used:
        raise Conflict(
            f"{secret.id} is used by live jobs, {used[0]} for one: end them first, or wait",
            code="secret_in_use",
            details={"job_ids": list(used)},
        )
    session.delete(secret)
    return secret


def find(session: Session, principal: Principal, secret_id: str) -> Secret:
    """Raises NotFound when the organization has no such secret."""
    return _found(session.get(Secret, secret_id), principal, secret_id)


def oldest(
    session: Session, principal: Principal, *, after: tuple[datetime, str] | None, limit: int
) -> Sequence[Secret]:
    """Up to `limit` secrets, oldest first, from the one that follows `after` (its creation and id)."""
    # Without the values: a page would be megabytes.
    values = defer(col(Secret.sealed))  # type: ignore[arg-type]  # SQLModel says less of a column than it knows
    query = select(Secret).options(values).where(Secret.org_id == principal.org_id)
    if after is not None:
        query = query.where(tuple_(col(Secret.created_at), col(Secret.id)) > after)
    return session.exec(query.order_by(col(Secret.created_at), col(Secret.id)).limit(limit)).all()


def count(session: Session, principal: Principal) -> int:
    """How many `oldest` would list in all."""
    return session.exec(select(func.count()).select_from(Secret).where(Secret.org_id == principal.org_id)).one()


def claim(session: Session, org_id: str, job_id: str, wanted: Sequence[Reference]) -> None:
    """Notes what a new job refers to, so that no rotation and no deletion takes it away while the job lives.

    Raises:
        InvalidRequest: the organization has no such secret (`secret_not_found`), or the secret lacks the key
            (`secret_key_not_found`). An expired one is taken: what counts is the launch.
    """
    ids = sorted({reference.secret_id for reference in wanted})
    # Locked in one order, so that no two transactions wait for each other.
    query = select(Secret.id, Secret.key_names).where(col(Secret.id).in_(ids), Secret.org_id == org_id)
    rows = session.exec(query.order_by(col(Secret.id)).with_for_update(read=True)).all()
    known = {secret_id: set(keys) for secret_id, keys in rows}
    used: dict[str, set[str]] = defaultdict(set)
    for reference in wanted:
        if reference.secret_id not in known:
            raise InvalidRequest(
                f"{reference.secret_field}: this organization has no such secret",
                field=reference.secret_field,
                code="secret_not_found",
            )
        if reference.key not in known[reference.secret_id]:
            raise InvalidRequest(
                f"{reference.key_field}: the secret has no key {reference.key[:128]!r}",
                field=reference.key_field,
                code="secret_key_not_found",
            )
        used[reference.secret_id].add(reference.key)
    uses = [SecretUse(job_id=job_id, secret_id=name, key_names=sorted(keys)) for name, keys in used.items()]
    session.add_all(uses)


def used_by(session: Session, job_id: str) -> dict[str, Secret]:
    """The secrets that a live job refers to, by their ids."""
    query = select(Secret).join(SecretUse, col(SecretUse.secret_id) == col(Secret.id)).where(SecretUse.job_id == job_id)
    return {secret.id: secret for secret in session.exec(query).all()}


def _used_keys(session: Session, secret_id: str) -> dict[str, str]:
    """The keys that live jobs refer to, each with one of the jobs."""
    rows = session.exec(select(SecretUse.job_id, SecretUse.key_names).where(SecretUse.secret_id == secret_id)).all()
    return {key: job_id for job_id, keys in rows for key in keys}


def _locked(session: Session, principal: Principal, secret_id: str) -> Secret:
    return _found(session.get(Secret, secret_id, with_for_update=True), principal, secret_id)


def _found(secret: Secret | None, principal: Principal, secret_id: str) -> Secret:
    if secret is None or secret.org_id != principal.org_id:
        raise NotFound(f"no secret {secret_id[:64]!r}")
    return secret
