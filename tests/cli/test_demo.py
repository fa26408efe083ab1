"""`headrace demo` on a machine where nothing runs: it brings its own stack, and takes it away again."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Headrace
from tests.cli.stack import stack

pytestmark = pytest.mark.e2e


def start(data_dir: Path, *words: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cli", "demo", "--data-dir", str(data_dir), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "HEADRACE_LOCAL_ENGINE": "sandbox"},
    )


def test_it_trains_prints_the_bill_and_leaves_a_data_directory_that_goes_on(tmp_path: Path, headrace: Headrace):
    process = start(tmp_path / "d", "--steps", "60")
    out, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    for wanted in (
        "held-out loss",
        "sha256 ",
        "sample: ",
        r"^exit code +0$",
        r"^spend +0\.0[24] USD$",
        "^Temporal UI +http",
    ):
        assert re.search(wanted, out, re.MULTILINE), out
    assert "the job runs in a sandbox" in said
    assert f"`headrace up --data-dir {tmp_path / 'd'}` starts it again" in said
    with stack(tmp_path / "d"):
        assert "demo-train-char-lm" in headrace("job", "list", "--data-dir", tmp_path / "d").out


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """Ends what a failed test leaves: a stack that is killed leaves its workload running, as it should."""
    yield
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(tmp_path) in word for word in process.cmdline()):
                process.kill()


def test_an_interrupt_ends_the_job_and_the_stack(tmp_path: Path, headrace: Headrace):
    process = start(tmp_path / "d", "--steps", "1000000")
    assert process.stdout is not None
    while "step " not in (line := process.stdout.readline()):
        assert line, process.communicate()[1]
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "ending the job" in said
    assert not psutil.wait_procs(family, timeout=10)[1]
    with stack(tmp_path / "d"):
        listed = headrace("job", "list", "--data-dir", tmp_path / "d", "--state", "terminated").out
        assert "demo-train-char-lm" in listed
