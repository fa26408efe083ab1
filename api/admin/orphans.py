"""Machines with our owner id that no row explains, and the word that this database is the one they belong to."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlmodel import Session, col, func, select

from api.auth import ClusterAdmin, OnBehalfOf, ServicesOf
from api.compute.documentation import errors
from api.compute.schemas import Page
from api.encoding import json_response
from api.pagination import page
from store import audit, fence
from store.tables import OrphanSighting

router = APIRouter(prefix="/orphans", tags=["Administration"])

_MOST = 1_000


class Orphan(BaseModel):
    connection_id: str
    provider_id: str
    first_seen_at: datetime


class Orphans(Page):
    data: list[Orphan]
    fenced: bool = Field(description="Whether they are only told of, because this database may be a copy or a backup.")


@router.get("", summary="List orphaned machines", response_model=Orphans, responses=errors(403))
async def list_orphans(_principal: ClusterAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf) -> Response:
    """Up to 1,000, those first that were seen first. Each is deleted once it was seen for
    `HEADRACE_ORPHAN_GRACE_SECONDS`, unless the database is fenced."""
    return json_response(await services.db.read(_orphans))


@router.post("/confirm", summary="Confirm the database", response_model=Orphans, responses=errors(403))
async def confirm_database(principal: ClusterAdmin, services: ServicesOf, _on_behalf_of: OnBehalfOf) -> Response:
    """Says that this database is the one, and no copy of it: deletions and recoveries that were withheld go on, and the
    next reconciliation of each connection deletes what no row of it explains. Where the database that it was copied
    from still runs, that one is fenced then, if both share a file store; if they do not, machines of its jobs are
    deleted."""
    now = services.clock()

    def write(session: Session) -> dict[str, Any]:
        fence.confirm(session)
        audit.write(session, principal, "orphans.confirm", "installation", now)
        return _orphans(session)

    return json_response(await services.db.write(write))


def _orphans(session: Session) -> dict[str, Any]:
    order = (col(OrphanSighting.first_seen_at), col(OrphanSighting.provider_id))
    found = session.exec(select(OrphanSighting).order_by(*order).limit(_MOST)).all()
    total = session.exec(select(func.count()).select_from(OrphanSighting)).one()
    rows = [
        {"connection_id": row.connection_id, "provider_id": row.provider_id, "first_seen_at": row.first_seen_at}
        for row in found
    ]
    return {**page(rows, None, total), "fenced": fence.read(session).fenced}
