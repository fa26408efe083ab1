"""What a workload on this machine cannot reach: the control plane, other jobs, the data directory, cloud metadata."""

import asyncio
import contextlib
import http.server
import os
import re
import socket
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from providers.base import InstanceSpec, OfferQuery, ProviderState, TerminateState
from providers.local import LocalProvider
from providers.local.podman_config import tuned
from tests.providers.local_support import (
    ENGINES,
    cleaned,
    load_host_image,
    make_local,
    make_spec,
    podman,
    setup_of,
    start,
    unique_owner,
    until_ended,
    until_printed,
    view_of,
)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changes this machine's addresses, which takes root")

# Tries an address by bash alone and says what came of it, on one line.
TRY = """
attempt() {
  if timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; then echo "reached $1"; else echo "failed $1"; fi
}
"""


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


async def output_of(provider: LocalProvider, spec: InstanceSpec) -> str:
    """What a workload printed, once it has ended with exit code 0."""
    handle = await start(provider, spec)
    view = await until_ended(provider, handle)
    text = (await provider.logs(handle, None)).text
    assert view.exit_code == 0, text or view.message
    return text


@contextlib.contextmanager
def listening(address: str) -> Iterator[int]:
    """A web server on an address of this machine; its port."""
    server = http.server.ThreadingHTTPServer((address, 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def addresses_of_this_machine() -> list[str]:
    return sorted(a.address for found in psutil.net_if_addrs().values() for a in found if a.family == socket.AF_INET)


class TestTheControlPlane:
    async def test_no_port_of_this_machine_is_reached_on_any_address(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        addresses = {*addresses_of_this_machine(), "host.containers.internal", "$gateway"}
        gateway = "hex=$(awk 'NR>1 && $3!=\"00000000\" {print $3; exit}' /proc/net/route)\n"
        gateway += (
            'gateway=$([ -n "$hex" ] && printf "%d.%d.%d.%d" 0x${hex:6:2} 0x${hex:4:2} 0x${hex:2:2} 0x${hex:0:2})\n'
        )
        with listening("127.0.0.1") as private, listening("0.0.0.0") as public:
            tries = [f"attempt {address} {port}" for address in addresses for port in (private, public)]
            text = await output_of(provider, make_spec(data_dir, TRY + gateway + "\n".join(tries)))
        assert text.count("failed") == len(tries)
        assert "reached" not in text

    async def test_the_agents_socket_is_the_one_way_in(self, provider: LocalProvider, data_dir: Path) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
            writer.close()

        (data_dir / "agent").mkdir(exist_ok=True)
        path = data_dir / "agent" / "agent.sock"
        server = await asyncio.start_unix_server(answer, path)
        path.chmod(0o666)
        script = 'echo "it said $(curl -sS --unix-socket "$HEADRACE_SOCKET" http://headrace/ 2>&1)"'
        async with server:
            assert await output_of(provider, make_spec(data_dir, script)) == "it said hello\n"

    async def test_the_agents_directory_cannot_be_written(self, provider: LocalProvider, data_dir: Path) -> None:
        script = "touch /run/headrace/x 2>/dev/null || echo refused; rm -f /run/headrace/*.sh 2>/dev/null || echo kept"
        assert (await output_of(provider, make_spec(data_dir, script))).split() == ["refused", "kept"]


@pytest.mark.containers
async def test_the_host_network_is_what_its_name_says(podman_data: Path) -> None:
    """The same probe that fails above succeeds where isolation is switched off: it can tell the difference."""
    provider = make_local(podman_data, "podman", owner=unique_owner(), local_network="host")
    async with cleaned(provider):
        with listening("127.0.0.1") as port:
            text = await output_of(provider, make_spec(podman_data, f"{TRY}\nattempt 127.0.0.1 {port}"))
    assert text == "reached 127.0.0.1\n"


@pytest.fixture
def metadata_service() -> Iterator[str]:
    """What every cloud machine has at this address, on this machine for the length of a test; its URL."""
    subprocess.run(["ip", "address", "add", "169.254.169.254/32", "dev", "lo"], check=False, capture_output=True)
    try:
        with listening("169.254.169.254") as port:
            yield f"http://169.254.169.254:{port}/"
    finally:
        subprocess.run(["ip", "address", "del", "169.254.169.254/32", "dev", "lo"], check=False, capture_output=True)


@AS_ROOT
class TestCloudMetadata:
    async def test_is_not_reached(self, provider: LocalProvider, data_dir: Path, metadata_service: str) -> None:
        script = f"curl -sS -m 3 -o /dev/null {metadata_service} 2>&1 && echo reached; exit 0"
        assert "reached" not in await output_of(provider, make_spec(data_dir, script))

    @pytest.mark.containers
    def test_is_reached_from_an_ordinary_network(self, podman_data: Path, metadata_service: str) -> None:
        """The control: without the network of our own, the address above answers."""
        image = load_host_image(setup_of(podman_data))
        ordinary = tuned(podman_data / "ordinary", bridge=True, lean=False)
        name = f"headrace-test-{uuid.uuid4().hex[:8]}"
        try:
            arguments = ["run", "--network=podman", f"--name={name}", image, "curl", "-sS", "-m", "3", metadata_service]
            assert podman(ordinary, *arguments).returncode == 0
        finally:
            podman(ordinary, "rm", "--force", name)

    async def test_is_not_all_that_is_private_and_offers_say_so(self, provider: LocalProvider, engine: str) -> None:
        said = {offer.network_isolated for offer in await provider.offers(OfferQuery())}
        assert said == {engine == "sandbox"}

    async def test_no_route_can_be_added(self, provider: LocalProvider, data_dir: Path) -> None:
        script = "grep ^CapEff /proc/self/status; grep ^CapBnd /proc/self/status; grep NoNewPrivs /proc/self/status"
        text = await output_of(provider, make_spec(data_dir, script))
        effective, bounding = (int(value, 16) for value in re.findall(r"Cap\w+:\s+([0-9a-f]+)", text))
        net_admin, net_raw, sys_admin = 1 << 12, 1 << 13, 1 << 21
        assert not (effective | bounding) & (net_admin | net_raw | sys_admin)
        assert re.search(r"NoNewPrivs:\s+1", text)


class TestFiles:
    async def test_the_data_directory_is_nowhere(self, provider: LocalProvider, data_dir: Path) -> None:
        (data_dir / "master.key").write_text("canary-master-key")
        script = f"""
        cat '{data_dir}/master.key' 2>/dev/null
        find / -xdev -name master.key 2>/dev/null
        find / -name 'record.json' -not -path '/proc/*' 2>/dev/null
        cat /proc/1/root{data_dir}/master.key 2>/dev/null
        ls /run/headrace
        """
        text = await output_of(provider, make_spec(data_dir, script))
        assert re.fullmatch(r"(agent-v1-[0-9a-f]{16}\.sh\n)+(agent\.sock\n)?", text)

    async def test_one_jobs_files_are_not_anothers(self, provider: LocalProvider, data_dir: Path) -> None:
        places = "/tmp /workspace /root /var/tmp /dev/shm"
        writes = f"for d in {places}; do echo mine > $d/canary-file || exit 9; done; echo done; sleep 60"
        first = await start(provider, make_spec(data_dir, writes))
        await until_printed(provider, first, "done")
        reads = "find / -name 'canary-file' -not -path '/proc/*' 2>/dev/null; ls /proc | grep -c '^[0-9]'; exit 0"
        text = await output_of(provider, make_spec(data_dir, reads))
        assert (await view_of(provider, first)).state is ProviderState.RUNNING
        assert "canary" not in text
        assert int(text) < 12

    async def test_nothing_a_job_wrote_is_left_on_this_machine(self, provider: LocalProvider, data_dir: Path) -> None:
        marker = f"canary-{uuid.uuid4().hex}"
        spec = make_spec(data_dir, f"touch /workspace/{marker} /tmp/{marker} && echo done && sleep 60")
        handle = await start(provider, spec)
        await until_printed(provider, handle, "done")
        await provider.terminate(handle)
        assert await provider.get(handle) is None
        assert not (data_dir / "local" / spec.attempt_id).exists()
        assert files_named(marker) == []

    async def test_this_machines_programs_cannot_be_changed(self, provider: LocalProvider, data_dir: Path) -> None:
        before = os.stat("/usr/bin/true").st_mtime_ns
        script = "touch /usr/bin/true 2>/dev/null; rm -f /usr/bin/true 2>/dev/null; exit 0"
        await output_of(provider, make_spec(data_dir, script))
        assert os.stat("/usr/bin/true").st_mtime_ns == before


class TestProcesses:
    async def test_a_workload_sees_its_own_processes_only(self, provider: LocalProvider, data_dir: Path) -> None:
        script = f"kill -0 {os.getpid()} 2>/dev/null && echo alive; cat /proc/*/comm 2>/dev/null"
        names = set((await output_of(provider, make_spec(data_dir, script))).split())
        assert names <= {"bash", "bwrap", "cat"}

    async def test_the_token_is_in_no_command_line(self, provider: LocalProvider, data_dir: Path) -> None:
        await start(provider, make_spec(data_dir, "sleep 60"))
        assert not processes_with("hrb.canary-9d1c")

    @AS_ROOT
    async def test_a_sandboxed_process_is_nobody_on_this_machine(self, tmp_path: Path) -> None:
        data_dir = tmp_path / "data"
        async with cleaned(make_local(data_dir, "sandbox")) as provider:
            specs = [make_spec(data_dir, "sleep 60") for _ in range(2)]
            handles = [await start(provider, spec) for spec in specs]
            uids = [
                {process.uids().real for process in processes_with(spec.attempt_id) if process.ppid() != os.getpid()}
                for spec in specs
            ]
            assert [len(ids) for ids in uids] == [1, 1]
            assert uids[0] != uids[1]
            assert min(uids[0] | uids[1]) >= 1_000_000_000
            for handle in handles:
                assert await provider.terminate(handle) is TerminateState.GONE


def processes_with(*texts: str) -> list[psutil.Process]:
    """Live processes of this machine with one of the texts in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = "\0".join(process.cmdline())
            if any(text in line for text in texts) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def files_named(name: str) -> list[str]:
    places = [place for place in ("/tmp", "/var/tmp", "/root", "/var/lib/containers") if os.path.isdir(place)]
    return subprocess.run(["find", *places, "-name", name], capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.containers
class TestLimits:
    @pytest.fixture
    def engine(self) -> str:
        return "podman"

    async def test_memory_cpus_and_processes_are_bounded(self, provider: LocalProvider, data_dir: Path) -> None:
        script = """
        first() { cat "$@" 2>/dev/null | head -n 1; }
        echo memory $(first /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max)
        echo pids $(first /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max)
        echo quota $(first /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max)
        """
        text = await output_of(provider, make_spec(data_dir, script))
        found = dict(line.split()[:2] for line in text.splitlines())
        assert 3_900_000_000 < int(found["memory"]) <= 4_000_000_000
        assert found["pids"] == "4096"
        assert found["quota"] == "100000"

    async def test_a_workload_over_its_memory_is_killed(self, provider: LocalProvider, data_dir: Path) -> None:
        handle = await start(provider, make_spec(data_dir, "head -c 5G /dev/zero | tail -c 4500M > /dev/null"))
        view = await until_ended(provider, handle, seconds=120)
        assert view.exit_code == 137
        assert view.oom_killed is None
        assert "oom" not in os.listdir(".")  # which the monitor leaves in the directory that it was started in


class TestSandboxBounds:
    """Its limits are not those of a container, but what it takes it takes from everybody."""

    @pytest.fixture
    def engine(self) -> str:
        return "sandbox"

    async def test_whatever_can_be_written_is_a_part_of_the_jobs_memory(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        script = """
        for d in $(find / -xdev -type d -writable 2>/dev/null; cut -d ' ' -f 2 /proc/mounts); do
          if ! touch $d/x 2>/dev/null; then continue; fi
          df --block-size=1 --output=size $d | tail -n 1
        done
        """
        sizes = {int(size) for size in (await output_of(provider, make_spec(data_dir, script))).split()}
        assert sizes
        assert max(sizes) <= 1_000_001_536

    async def test_the_directories_that_programs_need_can_be_written(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        script = "for d in /tmp /var/tmp /dev/shm /root /run /workspace; do echo x >$d/x || exit 9; done; : >/dev/null"
        assert await output_of(provider, make_spec(data_dir, script)) == ""

    @AS_ROOT
    async def test_processes_and_file_sizes_are_bounded_and_the_workload_dies_before_others(
        self, provider: LocalProvider, data_dir: Path
    ) -> None:
        script = (
            "ulimit -Hu; ulimit -Hf; cat /proc/self/oom_score_adj; echo -500 >/proc/self/oom_score_adj 2>&1; exit 0"
        )
        processes, blocks, score, *_ = (await output_of(provider, make_spec(data_dir, script))).split("\n")
        assert int(processes) == 4096
        assert int(blocks) * 1024 <= 1_002_000_000
        assert score == "1000"
