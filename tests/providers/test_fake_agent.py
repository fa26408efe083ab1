"""Simulated agents speak the agent protocol as the real one does."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from agent.launch_spec import LaunchSpec, render
from domain.ids import AttemptId
from domain.spec import ComputeRequest, Workload
from providers.base import AgentBootstrap, InstanceSpec, OfferQuery, Provider
from providers.fake.control import CloudControl
from providers.fake.script import AgentScript, UnreadableLaunch, read_launch
from tests.providers.conformance import MakeProvider, MakeSpec
from tests.providers.control_plane import ControlPlane


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


@pytest.fixture
async def plane_url(plane: ControlPlane) -> AsyncIterator[str]:
    async with plane.listening() as url:
        yield url


@pytest.fixture
def make_spec(plane_url: str) -> MakeSpec:
    def make(name: str = "one", socket: str | None = None) -> InstanceSpec:
        reach = {"socket": socket} if socket else {"url": plane_url}
        return InstanceSpec(
            attempt_id=AttemptId(f"inst-{name}"), owner_id="hr-test", job_id=f"job-{name}", org_id="org", image="image",
            compute=ComputeRequest(accelerator="cpu-general", gpu_count=0, ephemeral_disk_gb=1),
            agent=AgentBootstrap(script="", token=SecretStr(f"hrb.inst-{name}"), **reach),
        )  # fmt: skip

    return make


@pytest.fixture
async def provider(make_fake_provider: MakeProvider) -> AsyncIterator[Provider]:
    provider = make_fake_provider("hr-test")
    yield provider
    await provider.close()


async def rent(provider: Provider, spec: InstanceSpec) -> None:
    offers = await provider.offers(OfferQuery("cpu-general", 0))
    await provider.create(spec, offers[0])


async def told(control: CloudControl, attempt: str) -> list[str]:
    (instance,) = await control.instances(attempt)
    return [what for _, what in instance["agent"]]


class TestRun:
    async def test_a_scripted_run_starts_writes_and_exits(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(stdout="loss 1\n", stderr="warning\n", repeat=2, run_seconds=0.02, status=7)
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.exits))
        ended = {"status": "7", "signal": "0", "interrupted": "0"}
        assert plane.exits["inst-one"] == {**ended, "stdout": "14", "stderr": "16"}
        assert plane.output["inst-one", "stdout"] == b"loss 1\nloss 1\n"
        assert plane.output["inst-one", "stderr"] == b"warning\nwarning\n"
        assert plane.paths("inst-one")[0] == "/agent/v1/launch"

    async def test_the_jobs_own_argv_wins_over_the_rule(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(status=1)
        plane.workload = Workload(argv=("fake", AgentScript(status=3, stdout="it's me\n").model_dump_json()))
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.exits))
        assert plane.exits["inst-one"]["status"] == "3"
        assert plane.output["inst-one", "stdout"] == b"it's me\n"

    async def test_an_agent_behind_a_unix_socket_is_the_same(
        self, provider: Provider, control: CloudControl, make_spec: MakeSpec, tmp_path: Path
    ) -> None:
        await control.script()
        plane = ControlPlane()
        async with plane.listening(str(tmp_path / "agent.sock")):
            await rent(provider, make_spec(socket=str(tmp_path / "agent.sock")))
            await plane.until(lambda: bool(plane.exits))
        assert plane.output["inst-one", "stdout"] == b"fake\n"

    async def test_an_instance_whose_agent_ended_shows_its_exit_code(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(status=5)
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.exits))
        await _until_told(control, "inst-one", "ended")
        (view,) = await provider.list_owned()
        assert (view.state.value, view.exit_code) == ("exited", 5)

    async def test_bytes_that_are_not_acknowledged_are_sent_again(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        plane.acknowledge_bytes = 3
        await control.script(stdout="0123456789")
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.exits))
        assert plane.output["inst-one", "stdout"] == b"0123456789"

    async def test_an_outage_of_the_control_plane_delays_and_loses_nothing(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        plane.outage_calls = 4
        await control.script()
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.exits))
        assert plane.output["inst-one", "stdout"] == b"fake\n"


class TestOrders:
    async def test_a_stop_order_kills_the_workload_at_once(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(run_seconds=600)
        await rent(provider, make_spec())
        await plane.until(lambda: plane.held == 1)
        plane.stop.set()
        await plane.until(lambda: bool(plane.exits))
        assert (plane.exits["inst-one"]["status"], plane.exits["inst-one"]["signal"]) == ("137", "9")

    async def test_an_agent_that_ignores_stop_keeps_running_and_polling(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(run_seconds=600, ignore_stop=True)
        await rent(provider, make_spec())
        await plane.until(lambda: plane.held == 1)
        plane.stop.set()
        await plane.until(lambda: plane.paths("inst-one").count("/agent/v1/orders") >= 2)
        assert plane.exits == {}
        assert "stop" in await told(control, "inst-one")

    async def test_a_job_that_was_stopped_before_its_launch_starts_nothing(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        plane.refuse_launch = (409, "stop")
        await control.script()
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.paths("inst-one")))
        await _until_told(control, "inst-one", "stop")
        assert "started" not in await told(control, "inst-one")

    async def test_a_refused_agent_gives_up(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        plane.refuse_launch = (403, "another agent was first")
        await control.script()
        await rent(provider, make_spec())
        await _until_told(control, "inst-one", "dismissed: /agent/v1/launch answered 403")
        assert plane.paths("inst-one") == ["/agent/v1/launch"]


class TestMisbehaviour:
    async def test_an_agent_that_never_says_hello_calls_nobody(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(never_hello=True, job="job-mute")
        await control.script(job="job-loud")
        await rent(provider, make_spec("mute"))
        await rent(provider, make_spec("loud"))
        await plane.until(lambda: bool(plane.exits))
        assert plane.paths("inst-mute") == []

    async def test_an_agent_that_falls_silent_reports_no_exit(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(run_seconds=0.2, silent_after_seconds=0.1)
        await rent(provider, make_spec())
        await _until_told(control, "inst-one", "silent")
        await plane.until(lambda: plane.held <= 1)
        assert plane.exits == {}

    async def test_a_fault_is_reported_in_place_of_a_launch(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(fault="the image has no curl")
        await rent(provider, make_spec())
        await plane.until(lambda: bool(plane.faults))
        assert plane.faults == {"inst-one": "the image has no curl"}
        assert plane.nonces == {}

    async def test_the_agent_dies_with_its_machine(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(run_seconds=600)
        await rent(provider, make_spec())
        await plane.until(lambda: plane.held == 1)
        await control.vanish("inst-one")
        assert plane.exits == {}
        assert await provider.list_owned() == []


class TestManyAgents:
    async def test_a_hundred_agents_hold_their_polls_at_once(
        self, provider: Provider, control: CloudControl, plane: ControlPlane, make_spec: MakeSpec
    ) -> None:
        await control.script(run_seconds=600)
        offers = await provider.offers(OfferQuery("cpu-general", 0))
        bound = asyncio.Semaphore(20)

        async def one(number: int) -> None:
            async with bound:
                await provider.create(make_spec(f"n{number}"), offers[0])

        await asyncio.gather(*(one(number) for number in range(100)))
        await plane.until(lambda: plane.held == 100, seconds=60)
        plane.stop.set()
        await plane.until(lambda: len(plane.exits) == 100, seconds=60)


class TestReadLaunch:
    @given(
        script=st.builds(
            AgentScript, stdout=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
        ),
        value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    )
    def test_the_script_is_read_back_from_any_rendered_launch_spec(self, script: AgentScript, value: str) -> None:
        workload = Workload(argv=("fake", script.model_dump_json()), env={"VALUE": value})
        launch = read_launch(render(LaunchSpec("hrs.x.y", workload, {}, 1 << 20, 17)).decode())
        assert (launch.session_token, launch.orders_wait_seconds, launch.script) == ("hrs.x.y", 17, script)

    def test_another_command_has_no_script(self) -> None:
        workload = Workload(argv=("echo", "fake"))
        assert read_launch(render(LaunchSpec("hrs.x.y", workload, {}, 1 << 20, 30)).decode()).script is None

    def test_a_script_workload_has_no_script_of_ours(self) -> None:
        workload = Workload(script="echo 'it''s'\nfake\n")
        assert read_launch(render(LaunchSpec("hrs.x.y", workload, {}, 1 << 20, 30)).decode()).script is None

    @pytest.mark.parametrize(
        "fragment", ["", "<html>", "hr_session='open", "hr_session='x'\nhr_argv=('fake' 'nonsense')"]
    )
    def test_what_is_no_launch_spec_is_refused(self, fragment: str) -> None:
        with pytest.raises(UnreadableLaunch):
            read_launch(fragment)


async def _until_told(control: CloudControl, attempt: str, what: str) -> None:
    deadline = time.monotonic() + 10
    while what not in (heard := await told(control, attempt)):
        assert time.monotonic() < deadline, heard
        await asyncio.sleep(0.01)
