"""Connected backends as they are shown: what is for everyone, and what is for administrators only."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, select

from api.compute.backend_access import administers
from api.encoding import number
from api.services import Services
from domain.backends import Backend, catalog
from domain.forms import Fields
from domain.host_keys import fingerprint
from domain.money import cents
from domain.roles import Role
from store import connections, offers
from store.access import Principal
from store.connections import Use
from store.tables import Connection, ConnectionHealth, HostKey, Project


def render(
    session: Session, services: Services, principal: Principal, found: Sequence[Connection], *, in_full: bool = False
) -> list[dict[str, Any]]:
    """The connections for the caller; `in_full` with each host, which may be many."""
    ids = [row.id for row in found]
    of_org = None if principal.role is Role.CLUSTER_ADMIN else principal.org_id
    used = connections.uses(session, ids, of_org)
    health = {row.connection_id: row for row in offers.health(session) if row.connection_id in ids}
    projects = _project_names(session, found)
    now, valid_for = services.clock(), timedelta(seconds=services.settings.offers_valid_seconds)
    return [
        _render(
            row, used.get(row.id, Use()), projects.get(row.project_id or ""),
            _health(health.get(row.id), now, valid_for, told=administers(principal, row)),
            told=administers(principal, row), in_full=in_full,
        )
        for row in found
    ]  # fmt: skip


def _render(
    row: Connection, use: Use, project: str | None, health: dict[str, Any], *, told: bool, in_full: bool
) -> dict[str, Any]:
    """`told`: with what is for administrators."""
    backend = catalog().get(row.provider)
    return {
        "id": row.id,
        "provider": row.provider,
        "title": backend.title if backend else row.provider,
        "name": row.name,
        "scope": "project" if row.project_id else "organization" if row.org_id else "cluster",
        "org_id": row.org_id,
        "project": project,
        "state": row.state,
        "version": row.verification,
        "fields": {name: row.options[name] for name in _shown_fields(backend, row)} if told else None,
        "verification": {
            "pending": row.verified_number < row.verification,
            "status": row.verified_status,
            "message": row.verified_message if told else None,
            "at": row.verified_at,
            "hosts": row.verified_hosts if told and in_full else None,
        },
        "health": health,
        "live_instances": use.instances,
        "hourly_cost_usd": number(cents(use.usd_per_hour)),
        **_size(backend, row),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def _shown_fields(backend: Backend | None, row: Connection) -> list[str]:
    """Those of the form: what an edit may send back."""
    return [field.name for field in backend.fields if field.name in row.options] if backend else []


def _health(row: ConnectionHealth | None, now: datetime, valid_for: timedelta, *, told: bool) -> dict[str, Any]:
    if row is None or (row.last_poll_at is None and not row.blocked):
        return {"status": "unknown", "error": None, "last_poll_at": None, "offer_count": 0}
    usable, failed = offers.is_usable(row, now, valid_for), row.error_kind is not None
    status = ("degraded" if failed else "healthy") if usable else "unhealthy"
    return {
        "status": status,
        "error": row.error if told and failed else None,
        "last_poll_at": row.last_poll_at,
        "offer_count": row.offer_count if usable else 0,
    }


def _project_names(session: Session, found: Sequence[Connection]) -> dict[str, str]:
    wanted = {row.project_id for row in found if row.project_id}
    query = select(Project.id, Project.name).where(col(Project.id).in_(wanted))
    return dict(session.exec(query).all()) if wanted else {}


def _size(backend: Backend | None, row: Connection) -> dict[str, int | None]:
    if backend is None or backend.hosts is None:
        return {"host_count": None, "gpu_count": None}
    hosts = set(backend.hosts(row.options).values())
    if row.verified_status != "ok":
        # The reports are of what was refused.
        return {"host_count": len(hosts), "gpu_count": None}
    reports = [report for report in row.verified_hosts or () if report["hostname"] in hosts and report["usable"]]
    return {"host_count": len(hosts), "gpu_count": sum(len(report["gpus"]) for report in reports)}


def host_key(row: HostKey) -> dict[str, Any]:
    """A pinned key, by what people compare."""
    return {"address": row.address, "fingerprint": fingerprint(row.key), "first_seen_at": row.first_seen_at}


def form(backend: Backend) -> dict[str, Any]:
    """A backend of the catalog, with the fields of its form."""
    return {
        "provider": backend.key,
        "title": backend.title,
        "tagline": backend.tagline,
        "available": backend.available,
        "billed_to_you": backend.remote,
        "fields": _fields(backend.fields),
    }


def _fields(fields: Fields) -> list[dict[str, Any]]:
    return [
        {
            "name": field.name,
            "label": field.label,
            "kind": field.kind,
            "required": field.required,
            "secret": field.secret,
            "help": field.help,
            "minimum": field.limits and field.limits[0],
            "maximum": field.limits and field.limits[1],
            "max_entries": field.entries,
            "fields": _fields(field.fields) or None,
            "key": field.key or None,
        }
        for field in fields
    ]
