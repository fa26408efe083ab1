"""How a boot is followed, and when it will never succeed."""

import asyncio
import json
import os
import re

import httpx
import psutil
import pytest
from pydantic import SecretStr

from agent.script import agent_script
from domain.errors import (
    BootstrapFailed,
    ImagePullFailed,
    ProviderError,
)
from domain.ids import new_attempt_id
from domain.spec import Workload
from providers.base import (
    AgentBootstrap,
    ProviderState,
)
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.fake.script import AgentScript
from providers.runpod.pods import create_body
from providers.runpod.provider import RunPodProvider
from tests.agent.site import until
from tests.providers.conformance import OWNER, no_progress, until_gone
from tests.providers.control_plane import ControlPlane
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import make_runpod, make_spec, offer_of


class TestBoot:
    async def test_a_command_that_ended_idles_and_is_not_started_again(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        plane = ControlPlane(workload=Workload(argv=("fake", AgentScript(status=3, stdout="once\n").model_dump_json())))
        await control.script()
        provider = make_runpod(runpod)
        assert provider.capabilities.restarts_finished
        async with plane.listening() as url:
            attempt = new_attempt_id()
            agent = AgentBootstrap(script="exec sleep 600\n", token=SecretStr(f"hrb.{attempt}"), url=url)
            spec = make_spec(attempt_id=attempt, agent=agent)
            handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
            await plane.until(lambda: bool(plane.exits))
            told = await _until_told(control, "idles")
        assert "restarted" not in told
        assert plane.output[attempt, "stdout"] == b"once\n"
        view = await provider.get(handle)
        assert view is not None
        assert (view.state, view.exit_code) == (ProviderState.RUNNING, None)
        await until_gone(provider, handle)
        await provider.close()

    async def test_the_real_agent_runs_as_the_command_of_a_pod_and_idles(self, provider: RunPodProvider) -> None:
        attempt = new_attempt_id()
        plane = ControlPlane(workload=Workload(argv=("bash", "-c", "echo out; echo err >&2; exit 5")))
        async with plane.listening() as url:
            agent = AgentBootstrap(script=agent_script(), token=SecretStr(f"hrb.{attempt}"), url=url)
            body = create_body(make_spec(attempt_id=attempt, agent=agent), await offer_of(provider), None)
            args, environment = json.loads(body["args"]), {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": "x"}
            ran = await asyncio.create_subprocess_exec(
                *args["entrypoint"], *args["cmd"], env={**environment, **body["env"]}
            )
            try:
                await plane.until(lambda: bool(plane.exits), seconds=30)
                await asyncio.sleep(0.3)
                assert ran.returncode is None
            finally:
                # With job control each of its children has a process group of its own.
                children = psutil.Process(ran.pid).children(recursive=True)
                for process in (psutil.Process(ran.pid), *children):
                    process.kill()
                await ran.wait()
        assert (plane.exits[attempt]["status"], plane.exits[attempt]["signal"]) == ("5", "0")
        assert (plane.output[attempt, "stdout"], plane.output[attempt, "stderr"]) == (b"out\n", b"err\n")

    async def test_an_agent_that_ended_its_container_would_be_started_again(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        """The trap is there: the fake springs it on whoever does not idle."""
        plane = ControlPlane(workload=Workload(argv=("fake", AgentScript().model_dump_json())))
        await control.script()
        async with plane.listening() as url, httpx.AsyncClient() as client:
            body = {
                "name": f"{OWNER}-{new_attempt_id()}", "image": "y", "gpu": {"id": "NVIDIA GeForce RTX 4090"},
                "env": {"HEADRACE_TOKEN": "hrb.x", "HEADRACE_URL": url},
            }  # fmt: skip
            headers = {"authorization": f"Bearer {API_KEY}"}
            (await client.post(f"{runpod.url}/v2/pods", json=body, headers=headers)).raise_for_status()
            await _until_told(control, "restarted")

    async def test_what_the_host_says_of_the_boot_is_progress(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        await control.settings(pending_seconds=0.1, starting_seconds=0.2)
        lines: list[str] = []

        async def progress(line: str) -> None:
            lines.append(line)

        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await provider.provision(handle, spec, progress)
        assert f"{handle.provider_id} is pending" in lines
        assert "create container pytorch/pytorch:2.8.0" in lines

    @pytest.mark.parametrize(
        ("said", "kind"),
        [
            ("Error response from daemon: manifest for a/b:c not found: manifest unknown", ImagePullFailed),
            ("pull access denied for a/b, repository does not exist or may require 'docker login'", ImagePullFailed),
            ('Head "https://r.example/v2/a/manifests/b": unauthorized: authentication required', ImagePullFailed),
            ("failed to register layer: write /x: no space left on device", ImagePullFailed),
            ('exec: "bash": executable file not found in $PATH: unknown', BootstrapFailed),
            ("the GPU has fallen off the bus", BootstrapFailed),
        ],
    )
    async def test_a_boot_that_will_never_succeed_says_why(
        self, provider: RunPodProvider, control: CloudControl, said: str, kind: type[ProviderError]
    ) -> None:
        spec, offer = make_spec(), await offer_of(provider)
        await control.fault("create", boot_failure="boot_failed", boot_message=said)
        handle = await provider.create(spec, offer)
        with pytest.raises(kind, match=re.escape(said[:20])):
            await provider.provision(handle, spec, no_progress)

    async def test_a_boot_has_a_deadline(self, runpod: RunningRunPod, control: CloudControl) -> None:
        await control.settings(pending_seconds=600)
        provider = make_runpod(runpod, boot_seconds=0.1)
        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        with pytest.raises(BootstrapFailed, match=r"after 0\.1 s"):
            await provider.provision(handle, spec, no_progress)
        await provider.close()

    async def test_a_rate_limit_only_delays_a_boot(self, provider: RunPodProvider, control: CloudControl) -> None:
        spec = make_spec()
        handle = await provider.create(spec, await offer_of(provider))
        await control.fault("list", Answer.RATE_LIMIT, times=2)
        ready = await provider.provision(handle, spec, no_progress)
        assert ready.provider_id == handle.provider_id

    async def test_boots_share_one_list(self, runpod: RunningRunPod, control: CloudControl) -> None:
        await control.settings(starting_seconds=0.5)
        provider = make_runpod(runpod, poll_seconds=0.2)
        offer = await offer_of(provider)
        specs = [make_spec() for _ in range(10)]
        handles = [await provider.create(spec, offer) for spec in specs]
        before = len(await control.journal("list"))
        await asyncio.gather(*(provider.provision(h, s, no_progress) for h, s in zip(handles, specs, strict=True)))
        assert len(await control.journal("list")) - before <= 8
        assert await control.journal("get") == []
        await provider.close()


async def _until_told(control: CloudControl, what: str) -> list[str]:
    """All that the only pod's agent did, once it has done this."""
    told: list[str] = []

    async def done() -> bool:
        (instance,) = await control.instances()
        told[:] = [event for _, event in instance["agent"]]
        return what in told

    await until(done, what=what)
    return told
