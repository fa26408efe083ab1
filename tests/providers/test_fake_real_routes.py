"""A simulated agent against the real agent routes: for the control plane it is an agent like any other."""

from collections.abc import AsyncIterator, Callable

import pytest
from pydantic import SecretStr

from domain.ids import AttemptId
from domain.spec import ComputeRequest, Workload
from domain.states import JobState
from providers.base import AgentBootstrap, InstanceSpec, OfferQuery, Provider
from providers.fake.control import CloudControl
from providers.fake.script import AgentScript
from store.db import Database
from store.vault import Vault
from tests.agent.site import Attempt, Site, open_site, until


@pytest.fixture
async def site(sqlite_database: Database, vault: Vault) -> AsyncIterator[Site]:
    async with open_site(sqlite_database, vault) as opened:
        yield opened


@pytest.fixture
async def provider(make_fake_provider: Callable[..., Provider]) -> AsyncIterator[Provider]:
    provider = make_fake_provider()
    yield provider
    await provider.close()


async def rent(provider: Provider, site: Site, script: AgentScript) -> Attempt:
    attempt = site.attempt(Workload(argv=("fake", script.model_dump_json())), provider_id="instance-000001")
    spec = InstanceSpec(
        attempt_id=AttemptId(attempt.instance.id), owner_id="hr-test", job_id=attempt.job.id, org_id="org", image="i",
        compute=ComputeRequest(accelerator="cpu-general", gpu_count=0, ephemeral_disk_gb=1),
        agent=AgentBootstrap("", SecretStr(attempt.token), socket=str(site.settings.agent_socket)),
    )  # fmt: skip
    offers = await provider.offers(OfferQuery("cpu-general", 0))
    await provider.create(spec, offers[0])
    return attempt


async def exit_report(attempt: Attempt) -> dict[str, int]:
    async def reported() -> bool:
        return (await attempt.row()).drained_at is not None

    await until(reported, what="an exit report and all output")
    return (await attempt.row()).exit_report or {}


async def test_a_run_is_launched_logged_and_ended(provider: Provider, control: CloudControl, site: Site) -> None:
    await control.script()
    attempt = await rent(provider, site, AgentScript(stdout="loss 0.5\n", stderr="slow\n", status=3, repeat=2))
    report = await exit_report(attempt)
    assert (report["status"], report["signal"]) == (3, 0)
    assert attempt.output() == b"loss 0.5\n" * 2
    assert attempt.output("stderr") == b"slow\n" * 2
    assert JobState((await attempt.job_row()).state) is JobState.FINALIZING


async def test_a_terminate_reaches_it_through_its_held_poll(
    provider: Provider, control: CloudControl, site: Site
) -> None:
    await control.script()
    attempt = await rent(provider, site, AgentScript(run_seconds=600))

    async def running() -> bool:
        return JobState((await attempt.job_row()).state) is JobState.RUNNING

    await until(running, what="running")
    await attempt.terminate()
    report = await exit_report(attempt)
    assert (report["status"], report["signal"]) == (137, 9)
