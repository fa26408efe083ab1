"""Budgets: what an organization, one of its projects or one of its users may spend. An extension of ours."""

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlmodel import Session

from api.admin.scope import OrgIdQuery, target
from api.auth import OnBehalfOf, OrgAdmin, Reader, ServicesOf
from api.bodies import documented, parsed
from api.compute.documentation import errors
from api.compute.requests import MAX_USD, Bounded, Name, Slug
from api.compute.requests import Request as StrictRequest
from api.compute.schemas import Page
from api.encoding import json_response, number
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from domain.budgets import DEFAULT_ALERT_PERCENTS, EXHAUSTED_PERCENT, BudgetPeriod
from domain.errors import NotFound, PreconditionFailed
from domain.money import cents
from store import audit, budgets, tenants
from store.access import Principal
from store.budgets import BudgetStatus
from store.tables import Budget as BudgetRow
from store.tables import BudgetAlert

router = APIRouter(prefix="/budgets", tags=["Budgets"])

_BUDGET_ID = re.compile(r"bud_[0-9A-Za-z]{16}")
_MOST_PERCENTS = 10
_DECIMAL_PLACES = 18
_MOST_PERCENT = Decimal(10**9)

BudgetIdParameter = Annotated[str, Path(alias="id", examples=["bud_9f2kQxWv3bT8mLpZ"])]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description='The version that is to be changed, `"3"` or `3`; absent changes any.'),
]


def _amount(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number")
    amount = Decimal(value)
    if amount < 0:
        raise Bounded("must not be negative", 0)
    if amount > MAX_USD:
        raise Bounded(f"must be at most {MAX_USD}", str(MAX_USD))
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_DECIMAL_PLACES:
        raise Bounded(f"must have at most {_DECIMAL_PLACES} decimal places", _DECIMAL_PLACES)
    # One form for equal amounts, and no negative zero.
    return Decimal(format(abs(amount), "f"))


def _percents(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) > _MOST_PERCENTS:
            raise Bounded(f"has more than {_MOST_PERCENTS} entries", _MOST_PERCENTS)
        if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in value):
            raise ValueError("must be whole numbers")
        if any(not 1 <= entry <= EXHAUSTED_PERCENT for entry in value):
            raise Bounded("must be from 1 to 100", {"min": 1, "max": EXHAUSTED_PERCENT})
        return sorted(set(value))
    return value


Amount = Annotated[
    Decimal,
    BeforeValidator(_amount, json_schema_input_type=float),
    Field(description="USD; 0 lets nothing run.", json_schema_extra={"minimum": 0, "maximum": int(MAX_USD)}),
]
Percents = Annotated[
    list[int],
    BeforeValidator(_percents),
    Field(description="Percentages of the amount that are told, as alerts and to webhooks. 100 is always told."),
]

_EXAMPLE = {"amount_usd": 5000, "period": "monthly", "project": "vision", "alert_percents": [50, 80, 100]}


class BudgetCreate(StrictRequest):
    """A budget counts all spend of its scope in its window, what was spent before it was made included."""

    amount_usd: Amount
    period: Literal["monthly", "total"] = Field(
        default="monthly",
        description="`monthly`: calendar months in the organization's time zone. `total`: from its making, for ever.",
    )
    project: Slug | None = Field(default=None, description="Of this project's jobs only.")
    user: Name | None = Field(default=None, description="Of jobs that were created with keys of this owner only.")
    alert_percents: Percents = Field(default=list(DEFAULT_ALERT_PERCENTS))


class BudgetUpdate(StrictRequest):
    """What is absent stays. Scope and period do not change: make another budget for another one."""

    amount_usd: Amount | None = None
    alert_percents: Percents | None = None


class BudgetWindow(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    from_: datetime = Field(alias="from")
    to: datetime | None = Field(description="Exclusive; null for a total budget.")


class Alert(BaseModel):
    id: str
    kind: str = Field(description="`threshold`, `exhausted` or `overspent`.")
    percent: int
    amount_usd: float
    spent_usd: float
    at: datetime


class Budget(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "bud_9f2kQxWv3bT8mLpZ",
                "org_id": "org_9f2kQxWv3bT8mLpZ",
                "project": "vision",
                "user": None,
                "period": "monthly",
                "amount_usd": 5000,
                "alert_percents": [50, 80, 100],
                "version": 1,
                "window": {"from": "2026-07-01T00:00:00Z", "to": "2026-08-01T00:00:00Z"},
                "spent_usd": 2610.4,
                "reserved_usd": 340,
                "remaining_usd": 2049.6,
                "percent": 52.2,
                "burn_usd_hr": 12.5,
                "exhausted_at": "2026-08-05T09:31:00Z",
                "alerts": [],
                "created_at": "2026-07-01T08:00:00Z",
                "updated_at": "2026-07-01T08:00:00Z",
            }
        }
    )

    id: str
    org_id: str
    project: str | None
    user: str | None
    period: str
    amount_usd: float
    alert_percents: list[int]
    version: int = Field(description="Also its ETag.")
    window: BudgetWindow
    spent_usd: float = Field(description="In the window, by now.")
    reserved_usd: float = Field(description="What live jobs hold beyond what they have cost.")
    remaining_usd: float = Field(description="What a new job may reserve.")
    percent: float = Field(description="Of the amount that is spent.")
    burn_usd_hr: float = Field(description="What all that runs costs an hour now.")
    exhausted_at: datetime | None = Field(
        description="When it would stop its jobs, at today's burn; null when it would not in this window."
    )
    alerts: list[Alert] = Field(description="Of this window.")
    created_at: datetime
    updated_at: datetime


class BudgetList(Page):
    data: list[Budget]


@router.post(
    "",
    summary="Create a budget",
    status_code=201,
    response_model=Budget,
    responses=errors(400, 403, 404, 408, 409, 413, 422),
    openapi_extra=documented(BudgetCreate, _EXAMPLE),
)
async def create_budget(
    request: Request,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """From now on each create under it needs something free, and its jobs are stopped before it is overspent. A second
    budget of a scope and period is 409 `budget_exists`."""
    wanted, now, of_org = await parsed(request, BudgetCreate), services.clock(), target(principal, org_id)

    def create(session: Session) -> BudgetStatus:
        tenants.get(session, of_org)
        made = budgets.create(
            session,
            of_org,
            wanted.project,
            wanted.user,
            BudgetPeriod(wanted.period),
            wanted.amount_usd,
            wanted.alert_percents,
            now,
        )
        data = {"amount_usd": budgets.shown(wanted.amount_usd), "project": wanted.project, "user": wanted.user}
        audit.write(session, principal, "budget.create", made.id, now, data, org_id=of_org)
        return _status(session, of_org, made, now)

    return _answer(await services.db.write(create), 201)


@router.get("", summary="List budgets", response_model=BudgetList, responses=errors(400, 404, 422))
async def list_budgets(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """The budgets that the key's jobs may draw on, and how they stand; oldest first."""
    of_org, now = target(principal, org_id), services.clock()
    traversal = Traversal(services.vault, "budgets", of_org, principal.project_id)
    position = traversal.position(cursor)
    after = None if position is None else (moment_of(position[0]), position[1])

    def read(session: Session) -> tuple[list[BudgetStatus], bool, int]:
        found = budgets.list_all(session, of_org, project_id=principal.project_id)
        left = [budget for budget in found if after is None or (budget.created_at, budget.id) > after]
        return budgets.statuses(session, of_org, left[:limit], now), len(left) > limit, len(found)

    shown, more, total = await services.db.read(read)
    next_cursor = None
    if more:
        last = shown[-1].budget
        next_cursor = traversal.cursor([moment_key(last.created_at), last.id])
    return json_response(page([_render(status) for status in shown], next_cursor, total))


@router.get("/{id}", summary="Get a budget", response_model=Budget, responses=errors(404))
async def get_budget(
    budget_id: BudgetIdParameter,
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """The budget as it stands now."""
    of_org, now = target(principal, org_id), services.clock()
    _require_id(budget_id)

    def read(session: Session) -> BudgetStatus:
        return _status(session, of_org, _visible(session, principal, of_org, budget_id), now)

    return _answer(await services.db.read(read))


@router.put(
    "/{id}",
    summary="Update a budget",
    response_model=Budget,
    responses=errors(400, 403, 404, 408, 412, 413, 422),
    openapi_extra=documented(BudgetUpdate, {"amount_usd": 7500}),
)
async def update_budget(
    budget_id: BudgetIdParameter,
    request: Request,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
    if_match: IfMatch = None,
) -> Response:
    """Changes the amount or the percentages. Less than is spent stops its jobs at once; another amount tells its alerts
    anew."""
    wanted, now, of_org = await parsed(request, BudgetUpdate), services.clock(), target(principal, org_id)
    _require_id(budget_id)

    def update(session: Session) -> BudgetStatus:
        budget = budgets.find(session, of_org, budget_id, lock=True)
        if if_match is not None and if_match.strip() not in {str(budget.version), f'"{budget.version}"'}:
            raise PreconditionFailed(f"the budget is at version {budget.version}")
        budgets.change(session, budget, wanted.amount_usd, wanted.alert_percents, now)
        data = {"amount_usd": budgets.shown(budget.amount_usd), "version": budget.version}
        audit.write(session, principal, "budget.update", budget.id, now, data, org_id=of_org)
        return _status(session, of_org, budget, now)

    return _answer(await services.db.write(update))


@router.delete("/{id}", summary="Delete a budget", status_code=204, responses=errors(403, 404))
async def delete_budget(
    budget_id: BudgetIdParameter,
    principal: OrgAdmin,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    org_id: OrgIdQuery = None,
) -> Response:
    """The budget bounds nothing any more; its alerts go with it."""
    now, of_org = services.clock(), target(principal, org_id)
    _require_id(budget_id)

    def delete(session: Session) -> None:
        budget = budgets.find(session, of_org, budget_id, lock=True)
        audit.write(session, principal, "budget.delete", budget.id, now, org_id=of_org)
        budgets.remove(session, budget, now)

    await services.db.write(delete)
    return Response(status_code=204)


def _require_id(budget_id: str) -> None:
    if not _BUDGET_ID.fullmatch(budget_id):
        raise NotFound(f"no budget {budget_id[:64]!r}")


def _visible(session: Session, principal: Principal, org_id: str, budget_id: str) -> BudgetRow:
    """A key of one project sees that one's budgets, and those of the whole organization that bound it too."""
    budget = budgets.find(session, org_id, budget_id)
    if principal.project_id is not None and budget.project_id not in {"", principal.project_id}:
        raise NotFound(f"no budget {budget_id!r}")
    return budget


def _status(session: Session, org_id: str, budget: BudgetRow, now: datetime) -> BudgetStatus:
    [status] = budgets.statuses(session, org_id, [budget], now)
    return status


def _answer(status: BudgetStatus, code: int = 200) -> Response:
    return json_response(_render(status), code, {"ETag": f'"{status.budget.version}"'})


def _render(status: BudgetStatus) -> dict[str, Any]:
    budget = status.budget
    return {
        "id": budget.id,
        "org_id": budget.org_id,
        "project": status.project,
        "user": budget.owner or None,
        "period": budget.period,
        "amount_usd": number(budget.amount_usd),
        "alert_percents": budget.alert_percents,
        "version": budget.version,
        "window": {"from": status.window.start, "to": status.window.end},
        "spent_usd": number(cents(status.spent_usd)),
        "reserved_usd": number(cents(status.reserved_usd)),
        "remaining_usd": number(cents(status.remaining_usd)),
        "percent": number(_percent(status.spent_usd, budget.amount_usd)),
        "burn_usd_hr": number(status.burn_usd_hr),
        "exhausted_at": status.exhausted_at,
        "alerts": _alerts(status.alerts),
        "created_at": budget.created_at,
        "updated_at": budget.updated_at,
    }


def _percent(spent: Decimal, amount: Decimal) -> Decimal:
    if not amount:
        return Decimal(100)
    return min(spent / amount * 100, _MOST_PERCENT).quantize(Decimal("0.1"))


def _alerts(alerts: Sequence[BudgetAlert]) -> list[dict[str, Any]]:
    return [
        {
            "id": alert.id,
            "kind": alert.kind,
            "percent": alert.percent,
            "amount_usd": number(alert.amount_usd),
            "spent_usd": number(alert.spent_usd),
            "at": alert.at,
        }
        for alert in alerts
    ]
