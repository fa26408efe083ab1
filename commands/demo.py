"""`headrace demo`: everything from nothing. The embedded stack, a real training job, its log, its bill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from commands.client import ApiClient, Credentials, default_data_dir, find_credentials
from commands.data_dir import CREDENTIALS_FILE, PROCESS_LOGS, stack_failed
from commands.exits import CommandError, ExitCode, of_job
from commands.follow import announce, follow_logs
from commands.job_file import encode_script
from commands.render import job_record, print_log_lines, print_record, say
from commands.submit import new_idempotency_key
from commands.supervisor import die_with

_TRAINING = "train_char_lm.py"
_END = "END_OF_TRAINING_SCRIPT"
# Three processes of 15 s each to stop, at worst.
_STOP_SECONDS = 60
# Of this machine, unless HEADRACE_LOCAL_PRICE_USD_HR says otherwise: a bill with something on it after one minute.
_PRICE_USD_HR = "1.20"


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Holds the stack. Default: HEADRACE_DATA_DIR or ~/.headrace.", show_default=False
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Training steps; about 280 a second.", show_default=False)
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack running afterwards, until Ctrl-C.")] = False,
) -> None:
    """Start a stack, run a real training job on it, stream its log, print its bill, stop the stack.

    The job trains a small character-level language model on the Python language reference, with the standard library
    alone; it runs in a container when an engine works here, else in a sandbox. A stack that runs already on this data
    directory is used, and left running.
    """
    directory = data_dir or default_data_dir()
    signal.signal(signal.SIGTERM, _interrupt)
    running = _running_stack(directory)
    if running is not None:
        say(f"a stack is running on {directory}: using it")
        code = _run_job(running, steps)
    else:
        with _own_stack(directory) as stack:
            code = _run_job(find_credentials(directory), steps)
            if keep:
                say("the stack stays up; Ctrl-C stops it")
                with contextlib.suppress(KeyboardInterrupt):
                    stack.wait()
        again = "`make up` (or `headrace up`)" if data_dir is None else f"`headrace up --data-dir {data_dir}`"
        say(f"the stack is stopped; {again} starts it again, with this job in it, and keeps it")
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _running_stack(data_dir: Path) -> Credentials | None:
    """The stack that runs on `data_dir`, if one answers there."""
    if not (data_dir / CREDENTIALS_FILE).is_file():
        return None
    credentials = find_credentials(data_dir)
    try:
        with ApiClient(credentials) as client:
            client.get("/jobs", {"limit": 1})
    except CommandError:
        return None
    return credentials


@contextlib.contextmanager
def _own_stack(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """`headrace up`, ready; stopped afterwards, and also when this process is killed."""
    say("starting Temporal, a worker and the API")
    if "HEADRACE_LOCAL_PRICE_USD_HR" not in os.environ:
        say(f"for the demo an hour of this machine costs {_PRICE_USD_HR} USD")
    argv = [sys.executable, "-P", "-m", "cli", "up", "--json", "--data-dir", str(data_dir)]
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={"HEADRACE_LOCAL_PRICE_USD_HR": _PRICE_USD_HR, **os.environ},
        start_new_session=True,
        preexec_fn=die_with(os.getpid(), signal.SIGTERM),
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            process.wait()
            raise stack_failed("the stack did not start", f"its logs are in {data_dir / PROCESS_LOGS}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run_job(credentials: Credentials, steps: int | None) -> ExitCode:
    """Submits the training, streams its log, prints the final record; the job's class."""
    from commands.host_workload import prepare_image

    image = prepare_image(credentials.data_dir, say)
    with ApiClient(credentials) as client:
        job = client.post("/jobs", training_request(image, steps), {"Idempotency-Key": new_idempotency_key()})
        say(f"submitted {job['id']}: {_TRAINING}")
        try:
            print_log_lines(follow_logs(client, job["id"], on_state=announce))
        except KeyboardInterrupt:
            say("ending the job")
            client.post(f"/jobs/{job['id']}/terminate")
            raise
        job = client.get(f"/jobs/{job['id']}")
    _show(job, credentials)
    return of_job(job)


def training_request(image: str, steps: int | None) -> dict[str, Any]:
    """The training as a create request: one vCPU, at most a quarter of an hour and half a dollar."""
    training = resources.files("examples").joinpath(_TRAINING).read_text(encoding="utf-8")
    script = f"""set -eu
cd "$(mktemp -d)"
cat > {_TRAINING} <<'{_END}'
{training}{_END}
exec python3 {_TRAINING}
"""
    container: dict[str, Any] = {"image": image, "script_b64": encode_script(script.encode())}
    if steps is not None:
        container["env"] = {"STEPS": str(steps)}
    return {
        "name": "demo-train-char-lm",
        "compute": {"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
        "container": container,
        "limits": {"max_cost_usd": 0.5, "max_runtime_hours": 0.25},
    }


def _show(job: dict[str, Any], credentials: Credentials) -> None:
    temporal_ui = json.loads((credentials.data_dir / CREDENTIALS_FILE).read_text()).get("temporal_ui_url")
    workflow = f"{temporal_ui}/namespaces/default/workflows/{job['id']}" if temporal_ui else None
    say("")
    print_record(
        [
            *job_record(job),
            ("Temporal UI", workflow),
            ("API docs", f"{credentials.api_url}/docs"),
            ("API key", f"in {credentials.data_dir / CREDENTIALS_FILE}"),
        ]
    )
