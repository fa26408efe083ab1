"""Usage: what the organization's resources cost within a window."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import OnBehalfOf, Reader, ServicesOf
from api.compute.documentation import errors
from api.compute.moments import is_on_a_minute, moment
from api.compute.schemas import Page
from api.encoding import json_response, number
from api.pagination import CursorParameter, Traversal, moment_key, moment_of, page
from domain.errors import InvalidRequest
from domain.money import cents_of
from store import usage
from store.usage import Scope, Window

router = APIRouter(prefix="/usage", tags=["Usage"])

DEFAULT_DAYS = 30
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)

# As texts: an exact minute is one to the last digit that was written, and a datetime has fewer.
FromParameter = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=64,
        description=f"Inclusive: an RFC 3339 time on an exact UTC minute, never rounded. Absent: {DEFAULT_DAYS} days "
        "before `to`.",
        json_schema_extra={"format": "date-time"},
    ),
]
ToParameter = Annotated[
    str | None,
    Query(
        max_length=64,
        description="Exclusive: an RFC 3339 time on an exact UTC minute, at most the current one, which it is when "
        "absent.",
        json_schema_extra={"format": "date-time"},
    ),
]


class UsageWindow(BaseModel):
    from_: datetime = Field(alias="from")
    to: datetime


class UsageSummary(BaseModel):
    """The rounded exact sums of all rows, not of this page's."""

    total_usd: float
    job_usd: float
    service_usd: float
    volume_usd: float


class UsageRow(BaseModel):
    resource_type: str
    resource_id: str
    name: str = Field(description="Empty when the resource has none.")
    billable_seconds: int = Field(description="Of all its instances, in whole billable units.")
    accrued_usd: float = Field(description="Rounded half-up to cents.")


class Usage(Page):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "window": {"from": "2026-07-01T00:00:00Z", "to": "2026-08-01T00:00:00Z"},
                "granularity": "minute",
                "summary": {"total_usd": 0.19, "job_usd": 0.19, "service_usd": 0, "volume_usd": 0},
                "data": [
                    {
                        "resource_type": "job",
                        "resource_id": "job_9f2kQxWv3bT8mLpZ",
                        "name": "qwen-fine-tune",
                        "billable_seconds": 1560,
                        "accrued_usd": 0.19,
                    }
                ],
                "volume_ledger_granularity": "hour",
                "volume_allocation": "uniform_proration",
                "volume_usage_complete": True,
                "volume_usage_complete_through": "2026-08-01T00:00:00Z",
                "next_cursor": None,
                "total": 1,
            }
        }
    )

    window: UsageWindow
    granularity: Literal["minute"]
    summary: UsageSummary
    data: list[UsageRow] = Field(description="The resources that were created last come first.")
    volume_ledger_granularity: Literal["hour"]
    volume_allocation: Literal["uniform_proration"]
    volume_usage_complete: bool
    volume_usage_complete_through: datetime


@router.get("", summary="Get usage", response_model=Usage, responses=errors(400, 422))
async def get_compute_usage(
    principal: Reader,
    services: ServicesOf,
    _on_behalf_of: OnBehalfOf,
    from_: FromParameter = None,
    to: ToParameter = None,
    resource_type: Annotated[
        Literal["job", "service", "volume"] | None, Query(description="Only resources of this type.")
    ] = None,
    cursor: CursorParameter = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """What each resource cost in the window. A billable unit belongs to the window in which it begins, so that windows
    add up exactly; the report of a window never changes. A project's key is told of its project's resources."""
    now = services.clock()
    traversal = Traversal(services.vault, "usage", principal.org_id, principal.project_id, from_, to, resource_type)
    position = traversal.position(cursor)
    if position is None:
        window, after = _window(from_, to, now), None
    else:
        # Pages go on in the window of the first one, although the current minute is another.
        begin, end, created, resource_id = position
        window, after = Window(moment_of(begin), moment_of(end)), (moment_of(created), resource_id)
    scope = Scope(principal.org_id, principal.project_id, resource_type)
    found = await services.db.read(lambda session: usage.report(session, scope, window, now, after=after, limit=limit))
    next_cursor = None
    if found.more:
        last = found.page[-1]
        begin_end = [moment_key(window.begin), moment_key(window.end)]
        next_cursor = traversal.cursor([*begin_end, moment_key(last.resource_at), last.resource_id])
    spent = {name: found.attos.get(name, 0) for name in ("job", "service", "volume")}
    return json_response(
        {
            "window": {"from": window.begin, "to": window.end},
            "granularity": "minute",
            "summary": {
                "total_usd": number(cents_of(sum(spent.values()))),
                **{f"{name}_usd": number(cents_of(attos)) for name, attos in spent.items()},
            },
            # There are no volumes yet, so nothing of theirs is missing.
            "volume_ledger_granularity": "hour",
            "volume_allocation": "uniform_proration",
            "volume_usage_complete": True,
            "volume_usage_complete_through": window.end,
            **page([_row(entry) for entry in found.page], next_cursor, found.total),
        }
    )


def _row(entry: usage.Usage) -> dict[str, Any]:
    return {
        "resource_type": entry.resource_type,
        "resource_id": entry.resource_id,
        "name": entry.name or "",
        "billable_seconds": entry.seconds,
        "accrued_usd": number(cents_of(entry.attos)),
    }


def _window(from_: str | None, to: str | None, now: datetime) -> Window:
    """The window that was asked for.

    Raises:
        InvalidRequest: not on whole minutes, in the future, or not in order.
    """
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    end = minute if to is None else _minute(to, "to")
    if end > minute:
        latest = minute.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise InvalidRequest(f"to: must not be later than the current minute, {latest}", field="to", limit=latest)
    begin = max(end - timedelta(days=DEFAULT_DAYS), _EARLIEST) if from_ is None else _minute(from_, "from")
    if begin >= end:
        raise InvalidRequest("from: must be earlier than to", field="from")
    return Window(begin, end)


def _minute(text: str, field: str) -> datetime:
    try:
        begin = moment(text)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None
    if begin < _EARLIEST:
        earliest = _EARLIEST.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise InvalidRequest(f"{field}: must not be earlier than {earliest}", field=field, limit=earliest)
    if not is_on_a_minute(text):
        raise InvalidRequest(f"{field}: must be on an exact UTC minute", field=field)
    return begin
