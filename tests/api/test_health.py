"""`/healthz` and `/readyz`."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from api.server import beat
from api.services import Services
from store import liveness
from tests.api.conftest import Api, anonymous
from tests.support.clock import SettableClock


@dataclass
class TemporalServer:
    """What `/readyz` asks of a connection: whether the server is healthy."""

    up: bool = True
    asked: int = 0
    service_client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.service_client = self

    async def check_health(self) -> bool:
        self.asked += 1
        if not self.up:
            raise RuntimeError("canary: connection refused")
        return True


def ready(api: Api) -> tuple[int, dict[str, Any]]:
    answer = anonymous(f"{api.url}/readyz")
    body = answer.json()
    return answer.status_code, body.get("error", body)


def start_worker(services: Services, clock: SettableClock) -> None:
    services.db.run_write(lambda s: liveness.beat(s, "w", liveness.WORKER, clock()))


def test_the_process_answers_without_a_key(api: Api) -> None:
    assert anonymous(f"{api.url}/healthz").json() == {"status": "ok"}


def test_ready_when_database_temporal_and_worker_are_there(api: Api, services: Services, clock: SettableClock) -> None:
    services.temporal = TemporalServer()  # type: ignore[assignment]
    start_worker(services, clock)
    status, body = ready(api)
    assert (status, body["status"]) == (200, "ready")
    assert {part["status"] for part in body["parts"].values()} == {"ok"}


def test_not_ready_names_each_part_that_is_down(api: Api, services: Services, clock: SettableClock) -> None:
    status, error = ready(api)
    assert (status, error["code"]) == (503, "not_ready")
    assert {name: part["status"] for name, part in error["details"]["parts"].items()} == {
        "database": "ok",
        "temporal": "down",
        "worker": "down",
    }
    assert "temporal" in error["message"]
    start_worker(services, clock)
    services.temporal = TemporalServer(up=False)  # type: ignore[assignment]
    _, error = ready(api)
    assert error["details"]["parts"]["worker"]["status"] == "ok"
    assert error["details"]["parts"]["temporal"]["status"] == "down"
    assert "canary" not in str(error)


def test_a_worker_that_fell_silent_is_down(api: Api, services: Services, clock: SettableClock) -> None:
    services.temporal = TemporalServer()  # type: ignore[assignment]
    start_worker(services, clock)
    clock.advance(liveness.ALIVE_SECONDS + 1)
    assert ready(api)[0] == 503


def test_a_database_that_takes_no_writes_is_not_ready_until_it_does(
    api: Api, services: Services, clock: SettableClock
) -> None:
    services.temporal = TemporalServer()  # type: ignore[assignment]
    start_worker(services, clock)

    def beat_once() -> None:
        clock.advance(seconds=1)

        async def beat_briefly() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(beat(services, "api_1"), 0.3)

        asyncio.run(beat_briefly())

    beat_once()
    assert ready(api)[0] == 200
    refusal = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    for change in ("INSERT", "UPDATE"):
        statement = f"CREATE TRIGGER full_{change} BEFORE {change} ON liveness {refusal}"
        services.db.run_write(lambda s, statement=statement: s.connection().exec_driver_sql(statement))
    beat_once()
    status, error = ready(api)
    assert status == 503
    assert error["details"]["parts"]["database"] == {
        "status": "down",
        "message": "it takes no writes (database or disk is full)",
    }
    for change in ("INSERT", "UPDATE"):
        services.db.run_write(lambda s, change=change: s.connection().exec_driver_sql(f"DROP TRIGGER full_{change}"))
    beat_once()
    assert ready(api)[0] == 200
