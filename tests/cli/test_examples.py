"""The examples, the demo and `headrace replay` on a running stack: everything that the README shows."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Headrace
from tests.cli.stack import RunningStack, stack

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with stack(tmp_path_factory.mktemp("examples") / "d") as running:
        yield running


@pytest.fixture(autouse=True)
def _use_the_stack(up: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATA_DIR", str(up.data_dir))


def test_every_example_is_tested_here():
    here = Path(__file__).read_text()
    for example in EXAMPLES.iterdir():
        if example.suffix in {".yaml", ".py"} and example.name != "__init__.py":
            assert f'"{example.name}"' in here, f"{example.name} is not tested"


def test_hello(headrace: Headrace):
    result = headrace("job", "submit", EXAMPLES / "hello.yaml", "--follow")
    assert result.code == 0
    assert "hello from Headrace" in result.out.splitlines()
    assert "state: succeeded" in result.err


def test_script(headrace: Headrace):
    result = headrace("job", "submit", EXAMPLES / "script.yaml", "--follow", "--json")
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    by_stream = {stream: [line["message"] for line in lines if line["stream"] == stream and line["source"] == "user"]
                 for stream in ("stdout", "stderr")}  # fmt: skip
    assert by_stream["stdout"] == [f"pass {n}: 9 words" for n in (1, 2, 3)]
    assert by_stream["stderr"][0] == "free space on the ephemeral disk:"


def test_a_job_gets_its_secret_and_the_log_does_not(headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "hf_0123456789")
    assert headrace("secret", "create", "hub", "--from-env", "HF_TOKEN=MY_TOKEN").code == 0
    result = headrace("job", "submit", EXAMPLES / "secret.yaml", "--follow")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-2:] == ["a token of 13 characters", "the log does not show it: ***"]


def test_a_failing_command_ends_follow_and_wait_with_its_class(headrace: Headrace):
    for flag in ("--follow", "--wait"):
        result = headrace("job", "submit", EXAMPLES / "hello.yaml", flag, "--", "bash", "-c", "exit 7")
        assert result.code == 1
        assert "exited with status 7" in result.out + result.err


def test_gpu_fails_for_want_of_the_hardware_on_a_machine_without_it(headrace: Headrace):
    script = json.loads(headrace("job", "submit", EXAMPLES / "gpu.yaml", "--dry-run").out)["container"]["script_b64"]
    assert subprocess.run(["bash", "-n"], input=base64.b64decode(script), check=False).returncode == 0
    result = headrace("job", "submit", EXAMPLES / "gpu.yaml", "--env", "HF_TOKEN=t", "--wait")
    assert result.code == 9
    assert "has no 1 x nvidia-h100-80gb, only cpu-general (capacity_unavailable)" in result.out


def test_the_official_client(up: RunningStack):
    credentials = up.credentials
    environment = {
        **os.environ,
        "HEADRACE_API_URL": credentials["api_url"],
        "HEADRACE_API_KEY": credentials["api_key"],
    }
    argv = [sys.executable, EXAMPLES / "official_client.py"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "stdout: hello" in done.stdout
    assert re.search(r"succeeded on local, [0-9.]+ USD", done.stdout)


def test_the_training_program_learns_and_writes_the_same_checkpoint_every_time(tmp_path: Path):
    said = []
    for name in ("a", "b"):
        environment = {**os.environ, "STEPS": "60", "CHECKPOINT": str(tmp_path / name)}
        argv = [sys.executable, EXAMPLES / "train_char_lm.py"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=120)
        said.append(done.stdout)
    losses = [float(number) for number in re.findall(r"loss ([0-9.]+)", said[0])]
    assert losses[-1] < losses[0] - 0.2
    assert re.findall("sha256 [0-9a-f]{64}", said[0]) == re.findall("sha256 [0-9a-f]{64}", said[1])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_demo_trains_on_the_running_stack_and_leaves_it_running(headrace: Headrace, up: RunningStack):
    result = headrace("demo", "--steps", "60")
    assert result.code == 0, result.err
    for wanted in ("held-out loss", "checkpoint checkpoint.json.gz", "sha256 ", "sample: ", "state "):
        assert wanted in result.out
    assert f"{up.said['temporal_ui_url']}/namespaces/default/workflows/job_" in result.out
    assert f"{up.said['api_url']}/docs" in result.out
    assert "using it" in result.err
    assert up.is_ready()


def test_a_finished_job_replays_cleanly_from_the_server_that_ran_it(headrace: Headrace):
    job = json.loads(headrace("job", "submit", EXAMPLES / "hello.yaml", "--wait", "--json").out)["id"]
    result = headrace("replay", job)
    assert result.code == 0, result.err
    assert re.fullmatch(rf"{job}: \d+ events, replays cleanly\n", result.out)
    assert headrace("replay", "job_0000000000000000").code == 5
