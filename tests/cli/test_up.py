"""`headrace up`: ready, restarted, stopped in order, killed, started again, and side by side."""

import json
import os
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Headrace
from tests.cli.stack import RunningStack, launch, ready, stack

pytestmark = pytest.mark.e2e


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


def jobs_of(headrace: Headrace, data_dir: Path) -> list[str]:
    return [job["id"] for job in json.loads(headrace("job", "list", "--json", "--data-dir", data_dir).out)]


def run_job(headrace: Headrace, data_dir: Path, *command: str) -> str:
    result = headrace(
        "job", "submit", "--data-dir", data_dir, "--image", "x.example/y:1", "--disk", "1", "--wait", "--json", "--",
        *command,
    )  # fmt: skip
    assert result.code == 0, result.err
    return json.loads(result.out)["id"]


def test_ready_means_that_a_job_runs_and_everything_private_is_private(tmp_path, headrace):
    with stack(tmp_path / "d") as up:
        assert up.is_ready()
        assert set(up.credentials) == {"api_url", "api_key", "org_id", "temporal_address", "temporal_ui_url"}
        assert "api_key" not in up.said
        for name in ("credentials.json", "master.key", "stack.json"):
            assert stat.S_IMODE((up.data_dir / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(up.data_dir.stat().st_mode) == 0o700
        assert set(up.processes) == {"supervisor", "temporal", "worker", "api"}
        job = run_job(headrace, up.data_dir, "echo", "hi")
        assert headrace("job", "logs", job, "--source", "user", "--data-dir", up.data_dir).out == "hi\n"
        for pid in up.processes.values():
            assert up.credentials["api_key"] not in " ".join(psutil.Process(pid).cmdline())
        listening = {c.laddr.ip for p in up.processes.values() for c in psutil.Process(p).net_connections("inet")
                     if c.status == psutil.CONN_LISTEN}  # fmt: skip
        assert listening == {"127.0.0.1"}
        code, said = up.stop()
    assert code == 0
    assert [line for line in said.splitlines() if line.startswith("stopping")] == [
        "stopping api",
        "stopping worker",
        "stopping temporal",
    ]


@pytest.mark.parametrize("name", ["worker", "api", "temporal"])
def test_a_killed_process_comes_back_and_jobs_run_again(tmp_path, headrace, name):
    with stack(tmp_path / "d") as up:
        before = up.processes[name]
        os.kill(before, signal.SIGKILL)
        until(lambda: up.processes.get(name) not in {None, before})
        until(up.is_ready)
        run_job(headrace, up.data_dir, "echo", "hi")


def test_a_killed_supervisor_takes_its_processes_with_it_and_the_next_start_goes_on(tmp_path, headrace):
    data_dir = tmp_path / "d"
    with stack(data_dir) as up:
        first = run_job(headrace, data_dir, "echo", "hi")
        credentials = up.credentials
        family = [psutil.Process(pid) for name, pid in up.processes.items() if name != "supervisor"]
        up.stop(signal.SIGKILL)
        # At once: the new one waits for the old Temporal server by itself.
        with stack(data_dir) as again:
            assert not psutil.wait_procs(family, timeout=10)[1]
            assert again.credentials == credentials
            second = run_job(headrace, data_dir, "echo", "hi")
            assert jobs_of(headrace, data_dir) == [second, first]
    with sqlite3.connect(data_dir / "temporal.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_second_supervisor_is_refused_and_the_first_goes_on(tmp_path):
    with stack(tmp_path / "d") as up:
        second = launch(tmp_path / "d")
        _, said = second.communicate(timeout=60)
        assert second.returncode == 12
        assert f"another `headrace up` (process {up.process.pid})" in said
        assert up.is_ready()


def test_two_stacks_started_together_have_nothing_in_common(tmp_path, headrace):
    starting = [launch(tmp_path / name) for name in "ab"]
    stacks: list[RunningStack] = []
    try:
        stacks = [ready(process, tmp_path / name) for process, name in zip(starting, "ab", strict=True)]
        one, two = stacks
        ports = [
            port for up in stacks for port in json.loads((up.data_dir / "stack.json").read_text())["ports"].values()
        ]
        assert len(set(ports)) == 6
        job = run_job(headrace, one.data_dir, "echo", "hi")
        assert (jobs_of(headrace, one.data_dir), jobs_of(headrace, two.data_dir)) == ([job], [])
        key = one.credentials["api_key"]
        (two.data_dir / "credentials.json").write_text(json.dumps({**two.credentials, "api_key": key}))
        assert headrace("job", "list", "--data-dir", two.data_dir).code == 4
    finally:
        for process in starting:
            process.terminate()
        for process in starting:
            process.communicate(timeout=90)


def test_a_port_that_is_taken_is_an_error_when_it_was_asked_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = launch(tmp_path / "d", "--port", str(port))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 12
    assert f"port {port} on 127.0.0.1 is taken" in said


def test_lost_credentials_are_made_anew_at_the_next_start(tmp_path, headrace):
    data_dir = tmp_path / "d"
    with stack(data_dir, "--no-ui") as up:
        assert up.credentials["temporal_ui_url"] is None
        job = run_job(headrace, data_dir, "echo", "hi")
    (data_dir / "credentials.json").unlink()
    with stack(data_dir, "--no-ui"):
        assert jobs_of(headrace, data_dir) == [job]


def refused(data_dir: Path, **environment: str) -> str:
    """What a stack says that does not start."""
    _, said = (process := launch(data_dir, "--no-ui", **environment)).communicate(timeout=90)
    assert process.returncode == 12, said
    assert "Traceback" not in said
    return said


def test_a_stack_whose_master_key_is_gone_makes_no_other_and_says_so(tmp_path):
    data_dir = tmp_path / "d"
    with stack(data_dir, "--no-ui"):
        pass
    key = (data_dir / "master.key").read_bytes()
    (data_dir / "master.key").unlink()
    assert "master.key is missing, and the database holds what was sealed with it" in refused(data_dir)
    assert not (data_dir / "master.key").exists()
    (data_dir / "master.key").write_bytes(key)
    with stack(data_dir, "--no-ui") as up:
        assert up.is_ready()


def test_a_file_that_is_no_database_is_said_so(tmp_path):
    data_dir = tmp_path / "d"
    data_dir.mkdir()
    (data_dir / "stack.json").write_text("{}")
    (data_dir / "headrace.db").write_text("garbage")
    assert "the database cannot be used: file is not a database" in refused(data_dir)


def test_a_directory_that_cannot_be_written_is_said_so(tmp_path):
    data_dir = tmp_path / "d"
    (data_dir / "supervisor.lock").mkdir(parents=True)
    assert "the stack cannot be started: Is a directory" in refused(data_dir)


def test_a_signal_during_the_start_leaves_nothing_behind(tmp_path):
    process = launch(tmp_path / "d")
    until(lambda: (tmp_path / "d" / "temporal.db").exists())
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not psutil.wait_procs(family, timeout=10)[1]
