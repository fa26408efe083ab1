"""`/healthz`: the process answers. `/readyz`: all that a job needs is there, or which part is not."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from api.auth import ServicesOf
from api.encoding import json_response
from api.errors import envelope, request_id_of
from api.services import Services
from store import liveness, warnings

router = APIRouter(tags=["Health"])

_PATIENCE_SECONDS = 2.0


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="Whether jobs can be accepted and run",
    responses={503: {"description": "A part is down; `details.parts` says which, and what is known of it."}},
)
async def readyz(request: Request, services: ServicesOf) -> Response:
    """200 when the database, Temporal and at least one worker are there."""
    checks = {"database": _database(services), "temporal": _temporal(services), "worker": _worker(services)}
    problems = dict(zip(checks, await asyncio.gather(*checks.values()), strict=True))
    parts: dict[str, Any] = {
        name: {"status": "ok"} if problem is None else {"status": "down", "message": problem}
        for name, problem in problems.items()
    }
    parts |= {name: {"status": "warning", "message": text} for name, text in (await _warnings(services)).items()}
    down = [name for name, problem in problems.items() if problem is not None]
    if not down:
        return json_response({"status": "ready", "parts": parts})
    message = "not ready: " + "; ".join(f"{name}: {problems[name]}" for name in down)
    return envelope(503, "not_ready", message, request_id_of(request), {"parts": parts}, {"Retry-After": "1"})


async def _warnings(services: Services) -> dict[str, str]:
    """What an administrator should see to, though jobs run."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await services.db.read(lambda session: warnings.warnings(session, services.settings.public_url))
    except Exception:
        return {}


async def _database(services: Services) -> str | None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.to_thread(services.db.check)
    except TimeoutError:
        return f"no answer within {_PATIENCE_SECONDS:g} seconds"
    except Exception as error:
        return f"it does not answer ({type(error).__name__})"
    return services.write_problem and f"it takes no writes ({services.write_problem})"


async def _temporal(services: Services) -> str | None:
    address = services.settings.temporal_address
    if services.temporal is None:
        return f"no connection to {address} yet"
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await services.temporal.service_client.check_health()
    except TimeoutError:
        return f"{address} does not answer within {_PATIENCE_SECONDS:g} seconds"
    except Exception as error:
        return f"{address} does not answer ({type(error).__name__})"
    return None


async def _worker(services: Services) -> str | None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            now = services.clock()
            alive = await services.db.read(lambda session: liveness.alive(session, liveness.WORKER, now))
    except Exception:
        return "unknown while the database does not answer"
    return None if alive else "none is running"
