"""The host agent's script, run for real with stand-ins for docker, nvidia-smi and shutdown on its PATH."""

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from agent.host import machine_ports
from agent.script import agent_script
from domain.spec import Port
from tests.agent.machine import ATTEMPT, IMAGE, TOKEN, Machine, Plane, script_for

USER_DATA_BYTES = 16_384  # the smallest limit among the clouds: that of EC2


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
