"""A stop order kills at once, wherever the agent is."""

import asyncio
import time

from domain.clock import utc_now
from tests.agent.site import Attempt, Site, until


async def test_a_stop_kills_the_workload_within_a_second_and_its_output_is_kept(site: Site) -> None:
    attempt = await site.script_job("trap '' TERM INT; echo before; sleep 300 & wait; echo after")
    await until(attempt.output, what="the workload runs")
    began = time.monotonic()
    await attempt.terminate()
    await until(lambda: _reported(attempt), seconds=5)
    assert time.monotonic() - began < 1
    assert await attempt.result() == (137, 9)
    assert attempt.output() == b"before\n"
    killed = [event for event in await attempt.events() if event.type == "workload_exited"]
    assert killed[0].data["killed_by_us"] is True


async def test_a_job_that_was_terminated_before_the_launch_never_starts(site: Site) -> None:
    await site.stop()
    attempt = await site.run("touch", "started")
    await attempt.terminate()
    await site.start()
    assert await attempt.ended() == 0
    assert not (site.directory / "started").exists()
    assert (await attempt.row()).exit_report is None


async def test_a_flood_does_not_hold_back_a_stop(site: Site) -> None:
    attempt = await site.run("bash", "-c", "yes 0123456789012345678901234567890123456789")
    await until(attempt.output, what="the workload runs")
    await attempt.terminate()
    assert await attempt.ended(seconds=15) == 0
    row = await attempt.row()
    assert row.exit_report is not None
    assert row.exit_report["signal"] == 9


async def test_an_agent_whose_instance_counts_as_absent_kills_its_workload_and_ends(site: Site) -> None:
    attempt = await site.run("sleep", "300")
    await until(lambda: _started(attempt), what="the workload runs")
    row = await attempt.row()
    row.confirmed_absent_at = utc_now()
    await site.services.db.write(lambda session: session.add(session.merge(row)))
    assert await attempt.ended(seconds=10) == 0


async def test_an_agent_that_is_to_idle_stays_after_the_result_is_acknowledged(site: Site) -> None:
    attempt = await site.run("true", environment={"HEADRACE_IDLE_AFTER_EXIT": "1"})
    await until(lambda: _reported(attempt))
    assert attempt.process is not None
    await asyncio.sleep(0.3)
    assert attempt.process.returncode is None


async def _reported(attempt: Attempt) -> bool:
    return (await attempt.row()).exit_report is not None


async def _started(attempt: Attempt) -> bool:
    return (await attempt.row()).started_at is not None
