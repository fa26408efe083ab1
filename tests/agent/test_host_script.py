"""The host agent's script, run for real with stand-ins for docker, nvidia-smi and shutdown on its PATH."""

import gzip
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent.host import HostSpec, host_script, machine_ports
from agent.script import agent_script
from domain.spec import Port

TOKEN = "hrb.inst-canary.9f3c1d7e"
ATTEMPT = "inst-abcdefghijklmnopqrst"
IMAGE = "registry.example/team/model:1.0"
USER_DATA_BYTES = 16_384  # the smallest limit among the clouds: that of EC2

DOCKER = r"""#!/bin/bash
printf '%s\n' "$*" >>"$BOX/argv"
case $1 in
  image) exit 1 ;;
  info) echo "io.containerd.runc.v2 $(cat "$BOX/runtimes" 2>/dev/null)" ;;
  pull)
    [[ -z $DOCKER_CONFIG ]] || cp -p "$DOCKER_CONFIG/config.json" "$BOX/config"
    echo "$(( $(cat "$BOX/pulls" 2>/dev/null) + 1 ))" >"$BOX/pulls"
    if [[ -s $BOX/pull-fails && $(cat "$BOX/pulls") -le $(cat "$BOX/pull-fails") ]]; then
      cat "$BOX/pull-says" >&2
      exit 1
    fi
    printf 'a: Pulling fs layer\nb: Already exists\na: Pull complete\nStatus: Downloaded\n' ;;
  run) for word; do [[ $word == --env-file=* ]] && cp "${word#--env-file=}" "$BOX/env"; done; echo container ;;
  wait)
    [[ -s $BOX/restarts ]] && rm "$BOX/restarts" && exit 1
    cat "$BOX/status" 2>/dev/null || echo 0 ;;
  logs) echo 'headrace-agent: fault: the image has no curl' ;;
esac
"""
RECORDER = '#!/bin/bash\nprintf "%s %s\\n" "${0##*/}" "$*" >>"$BOX/calls"\n'


@dataclass
class Plane:
    """What the control plane was told."""

    url: str
    posts: list[tuple[str, str, str]] = field(default_factory=list)
    registry: tuple[int, str] = (204, "")

    def lines(self, route: str) -> list[str]:
        return [body for path, _, body in self.posts if path.partition("?")[0] == f"/agent/v1/{route}"]


@pytest.fixture
def plane() -> Iterator[Plane]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            plane.posts.append((self.path, self.headers["Authorization"], body))
            status, answer = plane.registry if self.path == "/agent/v1/registry" else (200, "")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    plane = Plane(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield plane
    server.shutdown()
    thread.join()
    server.server_close()


class Machine:
    """A directory that stands for a machine's root, and the tools that it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bin = path / "bin"
        self._bin.mkdir()
        (path / "proc").mkdir()
        (path / "proc/meminfo").write_text("MemTotal:       16000000 kB\n")
        self.tool("docker", DOCKER)
        for name in ("shutdown", "iptables", "systemctl", "sleep"):
            self.tool(name, RECORDER)

    def tool(self, name: str, text: str) -> None:
        (self._bin / name).write_text(text)
        (self._bin / name).chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def read(self, name: str) -> str:
        path = self.path / name
        return path.read_text() if path.exists() else ""

    def boot(self, script: str) -> str:
        """Runs the script as a boot would; its console."""
        file = self.path / "part-001"
        file.write_text(script)
        environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "BOX": str(self.path),
            "HEADRACE_HOST_ROOT": str(self.path),
        }
        done = subprocess.run(
            ["bash", str(file), "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def script_for(plane: Plane, **changes: object) -> str:
    values: dict[str, object] = {
        "url": plane.url, "token": SecretStr(TOKEN), "attempt_id": ATTEMPT, "image": IMAGE, "agent": agent_script(),
        **changes,
    }  # fmt: skip
    return host_script(HostSpec(**values))  # type: ignore[arg-type]


def test_the_script_is_the_same_bytes_every_time_and_fits_the_smallest_user_data() -> None:
    plane = Plane("https://headrace.example")
    script = script_for(plane, image=f"{'r' * 250}.example/{'i' * 250}@sha256:{'0' * 64}")
    assert script == script_for(plane, image=f"{'r' * 250}.example/{'i' * 250}@sha256:{'0' * 64}")
    assert len(gzip.compress(script.encode(), mtime=0)) < USER_DATA_BYTES


def test_bash_can_read_the_script_and_gets_the_agent_back_to_the_byte(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(script_for(Plane("https://headrace.example")))
    subprocess.run(["bash", "-n", str(script)], check=True)
    head = script.read_text().partition("# The Headrace host agent:")[0]
    said = subprocess.run(["bash", "-c", f"{head}\nhh_agent"], capture_output=True, text=True, check=True).stdout
    assert said == agent_script()


@pytest.mark.parametrize("image", ["a\nb", 'a"b', "a\\b"])
def test_a_value_that_would_break_a_file_of_the_script_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="hh_image"):
        script_for(Plane("https://headrace.example"), image=image)


def test_a_quote_in_a_value_is_not_code(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane, image="x'; touch $BOX/owned; '"))
    assert not (machine.path / "owned").exists()


def test_an_image_is_pulled_and_its_container_runs_the_agent(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane))
    run = next(line for line in machine.read("argv").splitlines() if line.startswith("run "))
    assert f"--name {ATTEMPT}" in run
    assert "--cap-drop=ALL" in run
    assert "--shm-size=8000000k" in run
    assert run.endswith(f"--entrypoint=bash {IMAGE} /headrace-agent.sh")
    assert machine.read("env") == f"HEADRACE_TOKEN={TOKEN}\nHEADRACE_URL={plane.url}\n"
    assert machine.read("run/headrace/agent.sh") == agent_script()


def test_the_ports_of_the_job_are_published_and_ssh_beside_the_machines_own(machine: Machine, plane: Plane) -> None:
    names = {"web": 8080, "mine": 2222, "ssh": 22, "again": 8080}
    ports = tuple(Port(name=name, container_port=number, protocol="tcp") for name, number in names.items())
    machine.boot(script_for(plane, ports=ports))
    published = [word for word in machine.read("argv").split() if word.startswith("--publish=")]
    assert published == ["--publish=8080:8080/tcp", "--publish=2222:2222/tcp", "--publish=2223:22/tcp"]
    assert machine_ports(ports) == {8080: 8080, 2222: 2222, 22: 2223}


def test_the_boot_is_told_with_the_token_of_the_attempt(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane))
    assert plane.lines("progress") == [
        f"pulling {IMAGE}", f"pulled {IMAGE}: 2 layers", "starting the container",
    ]  # fmt: skip
    assert {authorization for _, authorization, _ in plane.posts} == {f"Bearer {TOKEN}"}


def test_the_token_is_in_no_argument_on_no_console_and_in_files_of_root_only(machine: Machine, plane: Plane) -> None:
    console = machine.boot(script_for(plane))
    for said in (console, machine.read("argv"), machine.read("calls"), *plane.lines("progress")):
        assert TOKEN not in said
    for path in (machine.path / "run/headrace").rglob("*"):
        if path.is_file() and TOKEN in path.read_text():
            assert path.stat().st_mode & 0o077 == 0, path


def test_the_power_goes_off_after_the_lifetime_and_after_the_workload(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane, lifetime_seconds=7_200))
    orders = [line for line in machine.read("calls").splitlines() if line.startswith("shutdown")]
    assert orders[0] in ("shutdown -P +120", "shutdown -P +119")
    assert orders[-1].startswith("shutdown -P +1 ")


def test_a_reboot_arms_what_is_left_of_the_lifetime(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane, lifetime_seconds=7_200))
    deadline = int(machine.read("var/lib/headrace/deadline"))
    machine.says("var/lib/headrace/deadline", str(deadline - 7_200))
    environment = {"PATH": f"{machine.path / 'bin'}:{os.environ['PATH']}", "BOX": str(machine.path)}
    subprocess.run([machine.path / "var/lib/cloud/scripts/per-boot/headrace-deadline"], env=environment, check=True)
    assert machine.read("calls").splitlines()[-1] == "shutdown -P now"


def test_an_image_that_does_not_exist_is_told_once_and_ends_the_machine(machine: Machine, plane: Plane) -> None:
    machine.says("pull-fails", "9")
    machine.says("pull-says", "Error response from daemon: manifest unknown")
    console = machine.boot(script_for(plane))
    reason = f"the image {IMAGE} cannot be pulled: Error response from daemon: manifest unknown"
    assert plane.lines("fault") == [reason]
    assert plane.posts[-1][0].endswith("/fault?kind=image_pull_failed")
    assert f"headrace-agent: fault: {reason}" in console
    assert machine.read("pulls").strip() == "1"
    assert "shutdown -P +1 " in machine.read("calls")
    assert "run " not in machine.read("argv")


def test_what_the_registry_wants_is_a_file_of_root_only_and_gone_before_the_image_runs(
    machine: Machine, plane: Plane
) -> None:
    plane.registry = (200, '{"auths": {"registry.example": {"auth": "cGFzcy1jYW5hcnk="}}}')
    console = machine.boot(script_for(plane, private=True))
    assert machine.read("config") == plane.registry[1]
    assert (machine.path / "config").stat().st_mode & 0o777 == 0o600
    left = [path for path in (machine.path / "run/headrace").rglob("*") if path.is_file()]
    assert not any("cGFzcy1jYW5hcnk=" in path.read_text() for path in left)
    assert "cGFzcy1jYW5hcnk=" not in console
    routes = [path.removeprefix("/agent/v1/") for path, _, _ in plane.posts]
    # The hello, which ends the exchange, comes before the container.
    assert routes == ["registry", "progress", "progress", "hello", "progress"]
    assert [line.split()[0] for line in machine.read("argv").splitlines()].count("run") == 1


def test_a_public_image_is_pulled_without_credentials(machine: Machine, plane: Plane) -> None:
    machine.boot(script_for(plane))
    assert machine.read("config") == ""
    assert not any("registry" in path for path, _, _ in plane.posts)
    assert machine.read("pulls").strip() == "1"


def test_a_job_that_has_ended_before_the_pull_ends_the_machine(machine: Machine, plane: Plane) -> None:
    plane.registry = (409, "")
    machine.boot(script_for(plane, private=True))
    assert machine.read("pulls") == ""
    assert plane.lines("fault") == []
    assert machine.read("calls").splitlines()[-1].startswith("shutdown -P +1 ")


@pytest.mark.parametrize("status", [500, 503])
def test_a_control_plane_that_does_not_say_what_the_registry_wants_is_asked_again_and_then_a_fault(
    machine: Machine, plane: Plane, status: int
) -> None:
    plane.registry = (status, "")
    machine.boot(script_for(plane, private=True))
    assert machine.read("pulls") == ""
    assert f"({status})" in plane.lines("fault")[0]


def test_a_pull_that_the_network_broke_is_repeated(machine: Machine, plane: Plane) -> None:
    machine.says("pull-fails", "2")
    machine.says("pull-says", "net/http: TLS handshake timeout")
    machine.boot(script_for(plane))
    assert machine.read("pulls").strip() == "3"
    assert plane.lines("fault") == []


def test_fewer_gpus_than_were_rented_are_a_fault(machine: Machine, plane: Plane) -> None:
    machine.tool("nvidia-smi", "#!/bin/bash\n[[ $1 == -L ]] && echo 'GPU 0: L4' || echo GPU-1\n")
    machine.boot(script_for(plane, gpu_count=2))
    (fault,) = plane.lines("fault")
    assert "1 of 2 GPUs" in fault


def test_a_machine_without_the_container_toolkit_is_a_fault(machine: Machine, plane: Plane) -> None:
    machine.tool("nvidia-smi", "#!/bin/bash\necho GPU-1\n")
    machine.boot(script_for(plane, gpu_count=1))
    (fault,) = plane.lines("fault")
    assert "nvidia-ctk" in fault


def test_gpus_that_the_engine_can_hand_over_are_asked_for(machine: Machine, plane: Plane) -> None:
    machine.tool("nvidia-smi", "#!/bin/bash\necho GPU-1\n")
    machine.says("runtimes", "nvidia")
    machine.boot(script_for(plane, gpu_count=1))
    assert plane.lines("fault") == []
    assert "--gpus=all" in machine.read("argv")


def test_an_agent_that_faults_is_quoted_on_the_console(machine: Machine, plane: Plane) -> None:
    machine.says("status", "211\n")
    console = machine.boot(script_for(plane))
    assert "headrace-agent: fault: the image has no curl" in console


def test_an_engine_that_restarts_is_asked_again_and_does_not_end_the_machine(machine: Machine, plane: Plane) -> None:
    machine.says("restarts", "1")
    machine.says("status", "7\n")
    console = machine.boot(script_for(plane))
    assert "the container ended with 7" in console


def test_a_control_plane_that_is_away_does_not_stop_the_boot(machine: Machine) -> None:
    machine.boot(script_for(Plane("http://127.0.0.1:9")))
    assert "run --detach" in machine.read("argv")
