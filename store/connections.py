"""Connections: accounts at providers, their verification, and their removal. Who may use which: `connection_reach`.

What was filled in is a *candidate* until the provider accepted it; only then does it take the place of what is in use.
All runs inside `Database.read` or `Database.write`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import orjson
from sqlalchemy import ColumnElement, case, delete, func, or_, tuple_
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from domain import forms
from domain.backends import Backend, Values
from domain.errors import Conflict, NotFound
from domain.ids import new_id
from store import host_keys, inbox, offers, sweeps
from store.db import publish
from store.lifecycle import request_termination
from store.tables import Connection, Instance, Job, OrphanSighting, PriceRecord
from store.vault import Vault

TOPIC = "connections"
"""Some connection is not what it was."""
CLUSTER = "cluster"
PENDING_FOR = timedelta(minutes=15)
"""After so long a candidate without an outcome is wiped."""
_UNDER_WAY_FOR = timedelta(minutes=2)
"""A verification takes no longer once a worker has it."""
_FAILED_KEPT = timedelta(days=1)
FORMER_REGIONS = "former_regions"
"""The one option that nobody fills in."""
_PREFIX = "conn_"
_SHOWN_JOBS = 20


class ConnectionState(StrEnum):
    PENDING = "pending"
    """The first verification has no outcome yet."""
    CONNECTED = "connected"
    FAILED = "failed"
    """The first verification failed; nothing secret is kept."""
    REMOVING = "removing"
    """Nothing new is rented; it goes once all that was rented is confirmed absent."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose a connection is."""

    org_id: str | None = None
    project_id: str | None = None

    @property
    def key(self) -> str:
        return self.project_id or self.org_id or CLUSTER


@dataclass(frozen=True, slots=True)
class Sight:
    """The connections that somebody is shown."""

    org_id: str | None
    """None: those of all organizations."""
    project_id: str | None = None
    """Of what belongs to a project, only this one's; None: all projects'."""
    cluster: bool = True
    """Also the cluster's."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Of a query for connections."""
        found: list[ColumnElement[bool]] = []
        if self.org_id is not None:
            own = col(Connection.org_id) == self.org_id
            found.append(or_(col(Connection.org_id).is_(None), own) if self.cluster else own)
        if self.project_id is not None:
            found.append(or_(col(Connection.project_id).is_(None), col(Connection.project_id) == self.project_id))
        return found


Position = tuple[int, datetime, str]
"""Of a connection in the list: 0 for the cluster's or 1, its creation, its id."""
_POSITION = (
    case((col(Connection.org_id).is_(None), 0), else_=1), col(Connection.created_at), col(Connection.id),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToVerify:
    """What a verification asks the provider about."""

    provider: str
    values: Values = field(repr=False)


@dataclass(frozen=True, slots=True)
class InUse:
    """A connection that workers rent from, or rented from: `values` build its provider."""

    id: str
    provider: str
    revision: int
    values: Values = field(repr=False)


@dataclass(frozen=True, slots=True)
class Use:
    """What of a connection is open now. `usd_per_hour` sums the prices in force."""

    instances: int = 0
    usd_per_hour: Decimal = Decimal(0)


def is_stored(connection_id: str) -> bool:
    """Whether it is a row, and not configured by the settings."""
    return connection_id.startswith(_PREFIX)


def context(connection_id: str) -> str:
    """What the vault binds sealed values of a connection to."""
    return f"connection:{connection_id}"


# Making and changing -------------------------------------------------------------------------------------------------


def connect(
    session: Session, vault: Vault, scope: Scope, backend: Backend, name: str, values: Values, now: datetime
) -> Connection:
    """A pending connection, about which a worker is going to ask the provider.

    Raises:
        Conflict: the scope has one of this name (`connection_name_conflict`); one that failed is taken over.
    """
    same = select(Connection).where(Connection.scope == scope.key, Connection.name == name)
    found = session.exec(same.with_for_update()).one_or_none()
    if found is not None and found.state != ConnectionState.FAILED:
        raise _name_taken(name)
    connection = found or Connection(
        id=new_id("conn"), provider="", name=name, scope=scope.key, org_id=scope.org_id,
        project_id=scope.project_id, state="", options={}, created_at=now, updated_at=now,
    )  # fmt: skip
    connection.provider, connection.state = backend.key, ConnectionState.PENDING
    _claim_name(session, connection)
    begin_verification(session, vault, connection, backend, values, now)
    return connection


def begin_verification(
    session: Session, vault: Vault, connection: Connection, backend: Backend, values: Values | None, now: datetime
) -> int:
    """Has the provider asked about `values`, or about what is in use; answers the verification's number."""
    if values is not None:
        options, secret = forms.split(backend.fields, values)
        connection.candidate_options = options | _former_regions(connection.options, options)
        connection.candidate_sealed = vault.seal(orjson.dumps(secret), context(connection.id))
        connection.candidate_at = now
    connection.verification += 1
    connection.updated_at = now
    session.add(connection)
    number = connection.verification
    inbox.put(session, connection.id, inbox.VERIFY, now, {"number": number}, key=f"verify-{number}")
    return number


def under_way(connection: Connection, now: datetime) -> int | None:
    """The number of the verification that is about what is wanted now, and was asked for lately."""
    if connection.verified_number < connection.verification and now - connection.updated_at < _UNDER_WAY_FOR:
        return connection.verification
    return None


def _former_regions(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Where machines may be left that were rented before an edit: what sweeps must not lose sight of."""
    former = {*(before.get("regions") or ()), *(before.get(FORMER_REGIONS) or ())} - {*(after.get("regions") or ())}
    return {FORMER_REGIONS: sorted(former)} if former else {}


def rename(session: Session, connection: Connection, name: str, now: datetime) -> None:
    """Raises Conflict when another one of its scope has this name."""
    same = select(Connection.id).where(Connection.scope == connection.scope, Connection.name == name)
    if session.exec(same.where(Connection.id != connection.id)).first() is not None:
        raise _name_taken(name)
    connection.name, connection.updated_at = name, now
    _claim_name(session, connection)


def _claim_name(session: Session, connection: Connection) -> None:
    """Of two that take one name at once, neither sees the other: the database says who was first."""
    name = connection.name
    session.add(connection)
    try:
        session.flush()
    except IntegrityError:
        raise _name_taken(name) from None


def _name_taken(name: str) -> Conflict:
    return Conflict(f"there is a connection {name!r} already", code="connection_name_conflict")


def values_of(vault: Vault, connection: Connection) -> Values | None:
    """What is in use; None before a verification succeeded."""
    return _opened(vault, connection, connection.options, connection.credentials_sealed)


def _opened(
    vault: Vault, connection: Connection, options: dict[str, Any] | None, sealed: bytes | None
) -> Values | None:
    if sealed is None:
        return None
    return forms.joined(options or {}, orjson.loads(vault.open(sealed, context(connection.id))))


# Verification --------------------------------------------------------------------------------------------------------


def to_verify(session: Session, vault: Vault, connection_id: str, number: int, now: datetime) -> ToVerify | None:
    """What this verification is about; None when another one, or nothing, is wanted."""
    connection = session.get(Connection, connection_id)
    if connection is None or connection.verification != number or connection.verified_number >= number:
        return None
    if connection.candidate_sealed is not None:
        if connection.candidate_at is None or now - connection.candidate_at > PENDING_FOR:
            return None
        values = _opened(vault, connection, connection.candidate_options, connection.candidate_sealed)
    else:
        values = values_of(vault, connection)
    return None if values is None else ToVerify(connection.provider, values)


def verified(
    session: Session,
    connection_id: str,
    number: int,
    status: str,
    message: str,
    now: datetime,
    hosts: list[dict[str, Any]] | None = None,
) -> None:
    """The outcome: what was accepted is in use from now on, what was not is wiped. `hosts`: what was found out of each,
    where the backend is made of hosts."""
    connection = session.get(Connection, connection_id, with_for_update=True)
    if connection is None or connection.verification != number or connection.verified_number >= number:
        return
    connection.verified_number = number
    connection.verified_status, connection.verified_message, connection.verified_at = status, message, now
    connection.verified_hosts = hosts
    had_candidate = connection.candidate_sealed is not None
    if status == "ok":
        if had_candidate:
            connection.options = connection.candidate_options or {}
            connection.credentials_sealed = connection.candidate_sealed
            connection.revision += 1
        if connection.state != ConnectionState.REMOVING:
            connection.state = ConnectionState.CONNECTED
    elif connection.state == ConnectionState.PENDING:
        connection.state = ConnectionState.FAILED
    elif not had_candidate and status in {"auth", "permission"}:
        offers.block(session, connection.id, connection.provider, status, message)
    _wipe_candidate(connection)
    connection.updated_at = now
    session.add(connection)
    publish(session, TOPIC)


def _wipe_candidate(connection: Connection) -> None:
    connection.candidate_options = connection.candidate_sealed = connection.candidate_at = None


def expire_candidates(session: Session, now: datetime) -> int:
    """Wipes what waited too long for an outcome, and forgets connections that failed long ago; says how many."""
    query = select(Connection).where(col(Connection.candidate_at) < now - PENDING_FOR).with_for_update()
    stale = session.exec(query).all()
    for connection in stale:
        verified(session, connection.id, connection.verification, "expired", "no worker verified it in time", now)
    old = (col(Connection.state) == ConnectionState.FAILED, col(Connection.updated_at) < now - _FAILED_KEPT)
    forgotten = session.exec(select(Connection.id).where(*old).with_for_update()).all()
    host_keys.forget_all(session, forgotten)
    session.exec(delete(Connection).where(col(Connection.id).in_(forgotten)))
    # A connection may be removed while its hosts are being looked at.
    host_keys.forget_strays(session)
    return len(stale)


# Workers -------------------------------------------------------------------------------------------------------------


def revisions(session: Session) -> dict[str, int]:
    """Of the connections that workers must have: those that something may be, or was, rented from."""
    query = select(Connection.id, Connection.revision).where(
        col(Connection.state).in_([ConnectionState.CONNECTED, ConnectionState.REMOVING])
    )
    return dict(session.exec(query).all())


def removing(session: Session) -> bool:
    """Whether some connection is being removed."""
    query = select(Connection.id).where(Connection.state == ConnectionState.REMOVING).limit(1)
    return session.exec(query).first() is not None


def in_use(session: Session, vault: Vault, connection_id: str) -> InUse | None:
    """What a worker builds the provider of; None when it is no more."""
    connection = session.get(Connection, connection_id)
    values = None if connection is None else values_of(vault, connection)
    if connection is None or values is None:
        return None
    return InUse(connection.id, connection.provider, connection.revision, values)


# Removal -------------------------------------------------------------------------------------------------------------


def remove(session: Session, connection: Connection, now: datetime, *, terminate: bool) -> bool:
    """Removes it; with `terminate` its jobs are ended first, and it goes once their machines are gone. Says whether it
    is gone already.

    Raises:
        Conflict: something of it is live (`connection_in_use`; `details.jobs` names whose).
    """
    jobs = _jobs_on(session, connection.id)
    if not jobs:
        _forget(session, connection)
        return True
    if not terminate and connection.state != ConnectionState.REMOVING:
        raise live_on(jobs, "it", "end them, or remove it with force=terminate")
    connection.state, connection.updated_at = ConnectionState.REMOVING, now
    _wipe_candidate(connection)
    session.add(connection)
    if terminate:
        for job in jobs:
            if job.terminal_at is None:
                message = f"the connection {connection.name} that it ran on was removed"
                request_termination(session, job.id, now, message=message)
    publish(session, TOPIC)
    return False


def live_on(jobs: Sequence[Job], what: str, remedy: str) -> Conflict:
    """The refusal to take away what jobs run on; names whose."""
    shown = [{"id": job.id, "name": job.name} for job in jobs[:_SHOWN_JOBS]]
    named = ", ".join(job.name or job.id for job in jobs[:_SHOWN_JOBS])
    more = f" and {len(jobs) - _SHOWN_JOBS} more" if len(jobs) > _SHOWN_JOBS else ""
    return Conflict(
        f"instances of {named}{more} are live on {what}; {remedy}",
        code="connection_in_use",
        details={"jobs": shown, "count": len(jobs)},
    )


def finish_removals(session: Session) -> list[str]:
    """Forgets the connections that are being removed and have nothing open any more; answers their ids."""
    removing = select(Connection).where(Connection.state == ConnectionState.REMOVING).with_for_update()
    done = [row for row in session.exec(removing).all() if not _jobs_on(session, row.id)]
    for connection in done:
        _forget(session, connection)
    return [connection.id for connection in done]


def _forget(session: Session, connection: Connection) -> None:
    offers.forget(session, connection.id)
    sweeps.forget(session, connection.id)
    host_keys.forget_all(session, [connection.id])
    session.exec(delete(OrphanSighting).where(col(OrphanSighting.connection_id) == connection.id))
    session.delete(connection)
    publish(session, TOPIC)


def _jobs_on(session: Session, connection_id: str) -> Sequence[Job]:
    """Those with an instance there that is not confirmed absent, in order of their ids."""
    live = select(Instance.job_id).where(*_open(Instance.connection_id == connection_id))
    return session.exec(select(Job).where(col(Job.id).in_(live)).order_by(col(Job.id))).all()


# Reading -------------------------------------------------------------------------------------------------------------


def find(session: Session, connection_id: str, org_id: str | None, *, for_update: bool = False) -> Connection:
    """The connection, for somebody of this organization (None: of all).

    Raises:
        NotFound: there is none, or it is another organization's.
    """
    connection = session.get(Connection, connection_id, with_for_update=for_update)
    if connection is None or (org_id is not None and connection.org_id not in {None, org_id}):
        raise NotFound(f"no connection {connection_id[:64]!r}")
    return connection


def listed(session: Session, sight: Sight, *, after: Position | None = None, limit: int) -> Sequence[Connection]:
    """Up to `limit` of those in sight, the cluster's first, then by age, from the one that follows `after`."""
    query = select(Connection).where(*sight.conditions())
    if after is not None:
        query = query.where(tuple_(*_POSITION) > after)
    return session.exec(query.order_by(*_POSITION).limit(limit)).all()


def position_of(connection: Connection) -> Position:
    """Where `listed` goes on after it."""
    return int(connection.org_id is not None), connection.created_at, connection.id


def count(session: Session, sight: Sight) -> int:
    """How many `listed` would list in all."""
    return session.exec(select(func.count()).select_from(Connection).where(*sight.conditions())).one()


def count_remote(session: Session, providers: Sequence[str]) -> int:
    """How many connections of these backends are in use."""
    query = select(func.count()).select_from(Connection).where(
        col(Connection.provider).in_(providers), Connection.state == ConnectionState.CONNECTED
    )  # fmt: skip
    return session.exec(query).one()


def uses(session: Session, connection_ids: Sequence[str], org_id: str | None) -> dict[str, Use]:
    """What of each connection is open for the organization (None: for all)."""
    conditions = _open(col(Instance.connection_id).in_(connection_ids))
    if org_id is not None:
        conditions = (*conditions, Instance.org_id == org_id)
    instances = session.exec(select(Instance).where(*conditions)).all()
    prices = _prices(session, [row.id for row in instances if row.allocated_at is not None])
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in instances:
        counts[row.connection_id] += 1
        sums[row.connection_id] += prices.get(row.id, Decimal(0))
    return {connection_id: Use(count, sums[connection_id]) for connection_id, count in counts.items()}


def _prices(session: Session, instance_ids: Sequence[str]) -> dict[str, Decimal]:
    """In force now."""
    query = select(PriceRecord).where(col(PriceRecord.instance_id).in_(instance_ids)).order_by(col(PriceRecord.id))
    return {row.instance_id: row.usd_per_hour for row in session.exec(query).all()}


def _open(*conditions: Any) -> tuple[Any, ...]:
    return (*conditions, col(Instance.confirmed_absent_at).is_(None))
