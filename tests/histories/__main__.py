"""Records the histories that `tests/workflows/test_replay.py` replays: `python -m tests.histories [SCENARIO...]`.

Run it when a workflow changes on purpose and old runs need no `patched()` any more; otherwise the recorded files stay.
Payloads are encrypted with a key that exists for this only (`key.txt`).
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from domain.states import JobState
from providers.fake.faults import Answer, Operation
from providers.fake.server import serve
from store.budget_inbox import budget_workflow_id
from store.vault import Vault
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.postgres import create_tables
from tests.support.temporal import running_dev_server

HERE = Path(__file__).parent


async def succeeded(plane: ControlPlane) -> str:
    return await plane.fake(limits={"max_runtime_hours": 1, "max_cost_usd": 1})


async def exited_nonzero(plane: ControlPlane) -> str:
    return await plane.fake(status=3)


async def terminated_while_running(plane: ControlPlane) -> str:
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.terminate(job_id)
    return job_id


async def ended_by_a_limit(plane: ControlPlane) -> str:
    return await plane.fake(run_seconds=60, limits={"max_runtime_hours": 1 / 3600})


async def preempted_and_retried(plane: ControlPlane) -> str:
    assert plane.cloud is not None
    job_id = await plane.fake(run_seconds=3, retry={"on_preemption": True, "max_attempts": 2})
    await plane.until_state(job_id, JobState.RUNNING)
    await plane.cloud.interrupt((await plane.attempts(job_id))[0].id)
    return job_id


async def never_booted(plane: ControlPlane) -> str:
    assert plane.cloud is not None
    await plane.cloud.script(never_hello=True, times=1)
    return await plane.fake()


async def stopped_by_a_budget(plane: ControlPlane) -> str:
    budget_id = await _budget(plane, "0.003")
    job_id = await plane.fake(run_seconds=60)
    await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)
    await plane.client.delete(f"/api/v1/compute/budgets/{budget_id}")
    handle = plane.temporal.get_workflow_handle(budget_workflow_id(plane.org_id))
    await handle.result()
    (HERE / "budget.json").write_text((await handle.fetch_history()).to_json())
    return job_id


async def _budget(plane: ControlPlane, usd: str) -> str:
    body = f'{{"amount_usd": {usd}, "alert_percents": [50]}}'
    answer = await plane.client.post("/api/v1/compute/budgets", content=body)
    return str(answer.json()["id"])


async def found_no_capacity(plane: ControlPlane) -> str:
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.CREATE, Answer.NO_CAPACITY, times=None)
    return await plane.fake()


SCENARIOS: tuple[Callable[[ControlPlane], Awaitable[str]], ...] = (
    succeeded,
    exited_nonzero,
    terminated_while_running,
    ended_by_a_limit,
    preempted_and_retried,
    never_booted,
    stopped_by_a_budget,
    found_no_capacity,
)


async def record(address: str, names: Sequence[str]) -> None:
    vault = Vault.parse((HERE / "key.txt").read_text())
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/headrace.db"
        create_tables(url)
        async with serve() as cloud, control_plane(url, address, cloud_url=cloud.url, vault=vault) as plane:
            for scenario in [s for s in SCENARIOS if not names or s.__name__ in names]:
                job_id = await scenario(plane)
                job = await plane.until_terminal(job_id, seconds=60)
                await plane.until_gone(job_id)
                handle = plane.temporal.get_workflow_handle(job_id)
                await handle.result()
                (HERE / f"{scenario.__name__}.json").write_text((await handle.fetch_history()).to_json())
                deletion = plane.temporal.get_workflow_handle(f"dealloc-{(await plane.attempts(job_id))[-1].id}")
                if scenario is succeeded:
                    (HERE / "deallocation.json").write_text((await deletion.fetch_history()).to_json())
                sys.stdout.write(f"{scenario.__name__}: {job['state']}\n")


if __name__ == "__main__":
    with running_dev_server() as server:
        asyncio.run(record(server, sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)
