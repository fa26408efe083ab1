"""How the local provider finds its engine, starts workloads with it, and survives what happens to a machine."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from domain.errors import BootstrapFailed, NoCapacity, ProviderNotFound, ProviderRejected
from domain.spec import ComputeRequest, Port
from providers.base import Handle, InstanceSpec, OfferQuery, ProviderContext, ProviderState, TerminateState
from providers.local import LocalProvider
from providers.local.engine import FAULT_EXIT_CODE
from providers.local.host_image import PROBE_IMAGE
from providers.local.sandbox import NOTICE
from tests.providers.local_support import (
    ENGINES,
    LocalTestSettings,
    cleaned,
    make_local,
    make_spec,
    podman,
    quiet,
    setup_of,
    start,
    unique_owner,
    until_ended,
    view_of,
)

NO_DOCKER = "docker: no engine of this kind was found"
GPU = "nvidia-l4-24gb"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data_dir(engine: str, tmp_path: Path, podman_data: Path) -> Path:
    return tmp_path / "data" if engine == "sandbox" else podman_data


@pytest.fixture
async def provider(engine: str, data_dir: Path) -> AsyncIterator[LocalProvider]:
    async with cleaned(make_local(data_dir, engine, owner=unique_owner())) as provider:
        yield provider


class TestTheChoice:
    @pytest.mark.containers
    def test_takes_podman_where_there_is_no_docker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        setup_of(tmp_path)
        monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        described = make_local(tmp_path, "auto").describe()
        assert described["engine"] == "podman"
        assert "docker" in described["rejected"]
        assert described["notes"] == []

    def test_falls_back_to_the_sandbox_and_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        provider = make_local(tmp_path, "auto")
        described = provider.describe()
        assert described["engine"] == "sandbox"
        assert set(described["rejected"]) == {"docker", "podman"}
        assert not provider.capabilities.custom_image

    def test_rejects_an_engine_that_is_there_and_runs_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "podman"
        program.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "Error: cgroups are on strike" >&2\nexit 125\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        described = make_local(tmp_path / "data", "auto").describe()
        assert described["engine"] == "sandbox"
        assert "cgroups are on strike" in described["rejected"]["podman"]

    async def test_of_an_engine_that_is_not_there_is_an_error_that_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
        context = ProviderContext("local", unique_owner(), str(tmp_path))
        provider = LocalProvider(context, LocalTestSettings(local_engine="docker"))
        report = await provider.verify()
        assert (report.status, report.message) == ("unreachable", "no engine runs here: " + NO_DOCKER)
        with pytest.raises(NoCapacity, match=NO_DOCKER):
            await provider.offers(OfferQuery())

    async def test_of_the_sandbox_is_told_to_the_owner_of_the_job(self, tmp_path: Path) -> None:
        async with cleaned(make_local(tmp_path, "sandbox")) as provider:
            handle = await start(provider, make_spec(tmp_path, "sleep 60"))
            assert handle.data["notice"] == NOTICE


class TestAnExit:
    @pytest.mark.parametrize("code", [0, 1, 143, 255])
    async def test_code_is_kept(self, provider: LocalProvider, data_dir: Path, code: int) -> None:
        handle = await start(provider, make_spec(data_dir, f"exit {code}"))
        view = await until_ended(provider, handle)
        assert (view.state, view.exit_code) == (ProviderState.EXITED, code)

    async def test_by_the_agents_fault_has_its_sentence(self, provider: LocalProvider, data_dir: Path) -> None:
        script = f"echo 'headrace-agent: fault: the image lacks curl' >&2; exit {FAULT_EXIT_CODE}"
        view = await until_ended(provider, await start(provider, make_spec(data_dir, script)))
        assert (view.state, view.message) == (ProviderState.FAILED, "the image lacks curl")

    async def test_leaves_output_for_diagnosis_and_repeats_none(self, provider: LocalProvider, data_dir: Path) -> None:
        handle = await start(provider, make_spec(data_dir, "echo out; echo err >&2"))
        await until_ended(provider, handle)
        page = await provider.logs(handle, None)
        assert sorted(page.text.split()) == ["err", "out"]
        assert (await provider.logs(handle, page.cursor)).text == ""


@pytest.mark.containers
class TestARemovalBehindOurBack:
    @pytest.fixture
    def engine(self) -> str:
        return "podman"

    async def test_is_a_failure_and_no_instance_that_is_still_to_start(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        handle = await start(provider, make_spec(data_dir, "sleep 60"))
        assert podman(setup_of(data_dir), "rm", "--force", "--time=0", handle.provider_id).returncode == 0
        view = await view_of(provider, handle)
        assert (view.state, view.exit_code) == (ProviderState.FAILED, None)
        assert view.message == "it was removed from podman by somebody else"
        assert [listed.state for listed in await provider.list_owned()] == [ProviderState.FAILED]
        assert await provider.terminate(handle) is TerminateState.GONE
        assert await provider.list_owned() == []


class TestATermination:
    async def test_before_the_start_forbids_it(self, provider: LocalProvider, data_dir: Path) -> None:
        spec = make_spec(data_dir, "sleep 60")
        handle = await provider.create(spec, (await provider.offers(OfferQuery()))[0])
        assert await provider.terminate(handle) is TerminateState.GONE
        with pytest.raises(ProviderNotFound):
            await provider.provision(handle, spec, quiet)
        assert await provider.list_owned() == []

    async def test_during_the_start_leaves_nothing(self, provider: LocalProvider, data_dir: Path) -> None:
        for milliseconds in (0, 2, 5, 10, 30, 60, 120):
            spec = make_spec(data_dir, "sleep 60")
            handle = await provider.create(spec, (await provider.offers(OfferQuery()))[0])
            starting = asyncio.create_task(provider.provision(handle, spec, quiet))
            await asyncio.sleep(milliseconds / 1000)
            await provider.terminate(handle)
            await asyncio.wait([starting])
            if starting.exception() is None:
                assert await provider.terminate(handle) is TerminateState.GONE
            assert await provider.list_owned() == []

    async def test_of_a_handle_of_another_backend_is_refused(self, provider: LocalProvider) -> None:
        with pytest.raises(ProviderRejected):
            await provider.terminate(Handle(provider_id="../../etc", resource_type="container"))


class TestAKilledWorker:
    """The process that started a workload is killed; another one takes over."""

    def _start_and_die(self, engine: str, data_dir: Path, owner: str, spec: InstanceSpec) -> None:
        program = f"""
import asyncio, os, signal
from pathlib import Path
from dataclasses import replace
from tests.providers.local_support import make_local, make_spec, start
data = Path({str(data_dir)!r})
spec = make_spec(data, {spec.agent.script!r}, attempt_id={spec.attempt_id!r})
asyncio.run(start(make_local(data, {engine!r}, owner={owner!r}), spec))
os.kill(os.getpid(), signal.SIGKILL)
"""
        root = Path(__file__).parents[2]
        died = subprocess.run([sys.executable, "-c", program], cwd=root, check=False, capture_output=True, text=True)
        assert died.returncode == -9, died.stderr

    async def test_leaves_the_workload_running_under_the_same_name(
        self, engine: str, provider: LocalProvider, data_dir: Path
    ) -> None:
        spec = make_spec(data_dir, "while [ ! -e /tmp/stop ]; do sleep 0.05; done; exit 9")
        await asyncio.to_thread(self._start_and_die, engine, data_dir, provider.owner_id, spec)
        (handle,) = await provider.find(spec.attempt_id)
        assert (await view_of(provider, handle)).state is ProviderState.RUNNING
        again = await provider.provision(handle, spec, quiet)
        assert again.provider_id == handle.provider_id
        assert await provider.terminate(handle) is TerminateState.GONE

    async def test_loses_no_exit_code(self, engine: str, provider: LocalProvider, data_dir: Path) -> None:
        spec = make_spec(data_dir, "sleep 2; exit 9")
        await asyncio.to_thread(self._start_and_die, engine, data_dir, provider.owner_id, spec)
        (handle,) = await provider.find(spec.attempt_id)
        assert (await until_ended(provider, handle)).exit_code == 9

    async def test_between_create_and_start_leaves_a_reservation(
        self, engine: str, provider: LocalProvider, data_dir: Path
    ) -> None:
        spec = make_spec(data_dir, "sleep 60")
        await provider.create(spec, (await provider.offers(OfferQuery()))[0])
        restarted = make_local(data_dir, engine, owner=provider.owner_id)
        (view,) = await restarted.list_owned()
        assert (view.attempt_id, view.state) == (spec.attempt_id, ProviderState.PENDING)


class TestASandboxWhoseMachineWasRestarted:
    async def test_has_failed_and_is_never_taken_for_another_process(self, tmp_path: Path) -> None:
        async with cleaned(make_local(tmp_path, "sandbox")) as provider:
            spec = make_spec(tmp_path, "sleep 60")
            handle = await start(provider, spec)
            status = tmp_path / "local" / spec.attempt_id / "status.json"
            pid = json.loads(status.read_text().splitlines()[0])["child-pid"]
            family = [psutil.Process(pid), *psutil.Process(pid).parents()[:2]]
            for process in family:
                # One whose child was killed may be gone by itself.
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=10)
            # After a restart the number may be anybody's: here it is this test's own.
            status.write_text(json.dumps({"child-pid": os.getpid()}) + "\n")
            view = await view_of(provider, handle)
            assert (view.state, view.exit_code) == (ProviderState.FAILED, None)
            assert await provider.terminate(handle) is TerminateState.GONE


@pytest.mark.containers
class TestContainers:
    @pytest.fixture
    def engine(self) -> str:
        return "podman"

    async def test_an_image_without_bash_is_named(self, provider: LocalProvider, data_dir: Path) -> None:
        with pytest.raises(BootstrapFailed, match="has no bash") as caught:
            await start(provider, make_spec(data_dir, "true", image=PROBE_IMAGE))
        assert PROBE_IMAGE in caught.value.message

    async def test_a_start_that_was_cut_off_in_the_middle_is_completed(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        spec = make_spec(data_dir, "sleep 60")
        handle = await provider.create(spec, (await provider.offers(OfferQuery()))[0])
        setup = setup_of(data_dir)
        made = podman(setup, "create", f"--name={handle.provider_id}", f"--label=headrace.owner={provider.owner_id}",
                      f"--label=headrace.attempt={spec.attempt_id}", spec.image, "sleep", "60")  # fmt: skip
        assert made.returncode == 0, made.stderr
        assert (await view_of(provider, handle)).state is ProviderState.STARTING
        await provider.provision(handle, spec, quiet)
        assert (await view_of(provider, handle)).state is ProviderState.RUNNING

    async def test_an_orphan_without_a_record_is_listed_and_can_be_deleted(
        self, provider: LocalProvider, data_dir: Path, tmp_path: Path
    ) -> None:
        spec = make_spec(data_dir, "sleep 60")
        await start(provider, spec)
        elsewhere = make_local(tmp_path / "fresh", "podman", owner=provider.owner_id)
        (view,) = await elsewhere.list_owned()
        assert view.attempt_id == spec.attempt_id
        assert await elsewhere.terminate(view.handle) is TerminateState.GONE

    async def test_published_ports_answer_on_the_address_of_the_api(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        port = Port(name="web", container_port=8000, protocol="http")
        serve = "while :; do sleep 60; done"
        handle = await start(provider, make_spec(data_dir, serve, ports=(port,), ssh_public_key="ssh-ed25519 AAAA"))
        view = await view_of(provider, handle)
        assert {(e.name, e.host) for e in view.endpoints} == {("web", "127.0.0.1"), ("ssh", "127.0.0.1")}
        assert handle.data["published"] is True

    async def test_many_starts_at_once_all_succeed(self, provider: LocalProvider, data_dir: Path) -> None:
        handles = await asyncio.gather(*(start(provider, make_spec(data_dir, "sleep 60")) for _ in range(8)))
        assert {v.state for v in await provider.list_owned()} == {ProviderState.RUNNING}
        assert set(await asyncio.gather(*(provider.terminate(handle) for handle in handles))) == {TerminateState.GONE}


class TestTenants:
    async def test_one_organization_at_a_time_has_the_machine(self, tmp_path: Path) -> None:
        async with cleaned(make_local(tmp_path, "sandbox")) as provider:
            offer = (await provider.offers(OfferQuery()))[0]
            await provider.create(make_spec(tmp_path, "true", org_id="org_a"), offer)
            await provider.create(make_spec(tmp_path, "true", org_id="org_a"), offer)
            with pytest.raises(NoCapacity, match="another organization"):
                await provider.create(make_spec(tmp_path, "true", org_id="org_b"), offer)

    async def test_an_administrator_may_share_it(self, tmp_path: Path) -> None:
        async with cleaned(make_local(tmp_path, "sandbox", local_multi_tenant=True)) as provider:
            offer = (await provider.offers(OfferQuery()))[0]
            for organization in ("org_a", "org_b"):
                await provider.create(make_spec(tmp_path, "true", org_id=organization), offer)
            assert len(await provider.list_owned()) == 2


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver that names two GPUs, and a device interface that gives /dev/null for each."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\nprintf 'NVIDIA L4, 23034, GPU-test-a\\nNVIDIA L4, 23034, GPU-test-b\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    null = {"path": "/dev/nvidiactl", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}
    devices = [
        {"name": name, "containerEdits": {"env": [f"GPU={name}"], "deviceNodes": [null]}}
        for name in ("GPU-test-a", "GPU-test-b", "all")
    ]
    specification = Path("/var/run/cdi/headrace-test.json")
    specification.parent.mkdir(exist_ok=True)
    specification.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    yield
    specification.unlink()


@pytest.mark.containers
@pytest.mark.skipif(os.geteuid() != 0, reason="writes a device specification, which takes root")
class TestGpus:
    @pytest.fixture
    async def gpu_provider(self, tmp_path: Path, two_gpus: None) -> AsyncIterator[LocalProvider]:
        async with cleaned(make_local(tmp_path / "data", "podman", owner=unique_owner())) as provider:
            yield provider

    def _spec(self, tmp_path: Path, count: int) -> InstanceSpec:
        compute = ComputeRequest(accelerator=GPU, gpu_count=count, ephemeral_disk_gb=1)
        return make_spec(tmp_path / "data", 'echo "has $GPU"; sleep 60', compute=compute)

    async def test_are_offered_in_every_number_that_exists(self, gpu_provider: LocalProvider) -> None:
        offers = {(o.accelerator, o.gpu_count): o for o in await gpu_provider.offers(OfferQuery())}
        assert set(offers) == {("cpu-general", 0), (GPU, 1), (GPU, 2)}
        assert offers[GPU, 2].price_usd_hr == 2 * offers[GPU, 1].price_usd_hr

    async def test_go_to_one_job_each_and_come_back(self, gpu_provider: LocalProvider, tmp_path: Path) -> None:
        handles = [await start(gpu_provider, self._spec(tmp_path, 1)) for _ in range(2)]
        offers = {o.gpu_count: o for o in await gpu_provider.offers(OfferQuery(GPU))}
        assert not offers[1].available
        with pytest.raises(NoCapacity, match="0 of 2 are free"):
            await gpu_provider.create(self._spec(tmp_path, 1), offers[1])
        said = set()
        async with asyncio.timeout(30):
            while len(said) < 2:
                said = {text for h in handles if (text := (await gpu_provider.logs(h, None)).text)}
        assert said == {"has GPU-test-a\n", "has GPU-test-b\n"}
        await gpu_provider.terminate(handles[0])
        await start(gpu_provider, self._spec(tmp_path, 1))


class TestWithoutGpus:
    async def test_none_is_offered_and_none_is_made_of_a_cpu(self, tmp_path: Path) -> None:
        async with cleaned(make_local(tmp_path, "sandbox")) as provider:
            (offer,) = await provider.offers(OfferQuery())
            assert (offer.accelerator, offer.gpu_count, offer.disk_enforced) == ("cpu-general", 0, False)
            compute = ComputeRequest(accelerator=GPU, gpu_count=1, ephemeral_disk_gb=1)
            with pytest.raises(NoCapacity, match="0 of 0 are free"):
                await provider.create(make_spec(tmp_path, "true", compute=compute), offer)

    def test_slots_follow_the_settings_or_the_cores(self, tmp_path: Path) -> None:
        assert make_local(tmp_path, "sandbox", local_slots=3).slots == 3
        assert make_local(tmp_path, "sandbox").slots == 4 * (psutil.cpu_count() or 1)
