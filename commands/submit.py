"""`headrace job submit`: from a job file, from flags, or from a file with flags laid over it."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials
from commands.exits import of_job
from commands.follow import announce, follow_logs, wait_until_terminal
from commands.job_file import merge, parse_assignments, read_job_file, script_from, usage
from commands.options import AsJson, DataDir, OnBehalfOf
from commands.render import hint, job_record, print_json, print_log_lines, put, say, show_job
from commands.secret import with_ids
from commands.ssh_key import check_access, key_of

_DEFAULT_DISK_GB = 10


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.yaml] [-- COMMAND...]",
            help="A job file, and what to run in the container.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="The container's image.", show_default=False)] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="A bash script to run, instead of COMMAND.", show_default=False)
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator", help="A name of `headrace accelerators`. Default: cpu-general.", show_default=False
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs on the node, 1-8.", show_default=False)] = None,
    vcpus: Annotated[
        int | None, typer.Option("--vcpus", help="vCPUs of a CPU job. Default: 1.", show_default=False)
    ] = None,
    disk: Annotated[
        int | None,
        typer.Option("--disk", help=f"Ephemeral disk in GB. Default: {_DEFAULT_DISK_GB}.", show_default=False),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Repeatable.", show_default=False)
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option(
            "--secret-env",
            metavar="NAME=SECRET:KEY",
            help="A variable from a stored secret, by its id or name. Repeatable.",
            show_default=False,
        ),
    ] = None,
    pull_secret: Annotated[
        str | None,
        typer.Option(
            "--image-pull-secret",
            metavar="SECRET",
            help="A stored secret with the keys username and password.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for people.", show_default=False)] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Repeatable.", show_default=False)
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="End the job before it costs more USD.", show_default=False)
    ] = None,
    max_runtime: Annotated[
        float | None, typer.Option("--max-runtime", help="End the job after so many hours.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="Only this provider. Repeatable.", show_default=False)
    ] = None,
    ssh_key: Annotated[
        str | None,
        typer.Option(
            "--ssh-key",
            metavar="FILE",
            help="Who may enter by SSH: the file of a public key, or its line. Default: nobody.",
            show_default=False,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="Repeating one key makes one job. Default: a new key.", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stream the log; exit with the job's class.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the job's class.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the request, send nothing.")] = False,
    data_dir: DataDir = None,
    on_behalf_of: OnBehalfOf = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job.

    From a file, with flags over it:  headrace job submit FILE.yaml --max-cost 5

    From flags alone:  headrace job submit --image python:3.12 --gpus 1 --accelerator nvidia-l4-24gb -- python train.py
    """
    path, argv = _split(words or [])
    body = read_job_file(Path(path)) if path is not None else {}
    if argv and script is not None:
        raise usage("--script and a command after -- exclude each other")
    container = body.get("container")
    if (argv or script is not None) and isinstance(container, dict):
        for replaced in ("command", "script_b64"):
            container.pop(replaced, None)
    merge(
        body,
        {
            ("container", "image"): image,
            ("container", "command"): argv or None,
            ("container", "script_b64"): None if script is None else script_from(script),
            ("container", "env"): parse_assignments(env, "--env") if env else None,
            ("container", "secret_env"): _references(secret_env) if secret_env else None,
            ("container", "image_pull_secret"): pull_secret,
            ("compute", "accelerator"): accelerator,
            ("compute", "gpu_count"): gpus,
            ("compute", "vcpu_count"): vcpus,
            ("compute", "ephemeral_disk_gb"): disk,
            ("limits", "max_cost_usd"): max_cost,
            ("limits", "max_runtime_hours"): max_runtime,
            ("placement", "providers"): provider or None,
            ("access", "ssh_public_key"): None if ssh_key is None else key_of(ssh_key),
            ("labels",): parse_assignments(label, "--label") if label else None,
            ("name",): name,
        },
    )
    if path is None:
        _fill_in(body)
    with_ssh = check_access(body)
    if dry_run:
        print_json(body)
        return
    with ApiClient(find_credentials(data_dir), on_behalf_of=on_behalf_of) as client:
        body = with_ids(client, body)
        job = client.post("/jobs", body, {"Idempotency-Key": idempotency_key or new_idempotency_key()})
        if with_ssh:
            hint(f"once it runs, enter it: headrace job ssh {job['id']}")
        after_create(client, job, follow=follow, wait=wait, as_json=as_json)


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """The job file, when the first word names one, and the command."""
    if words and words[0].endswith((".yaml", ".yml")) and (len(words) == 1 or Path(words[0]).is_file()):
        return words[0], words[1:]
    return None, words


def _references(pairs: list[str]) -> dict[str, dict[str, str]]:
    found = {}
    for name, reference in parse_assignments(pairs, "--secret-env").items():
        # Keys have no colon, names of secrets may.
        secret, colon, key = reference.rpartition(":")
        if not secret or not colon or not key:
            raise usage(f"--secret-env {name} wants SECRET:KEY")
        found[name] = {"secret_id": secret, "key": key}
    return found


def _fill_in(body: dict[str, Any]) -> None:
    """What a request by flags alone leaves open."""
    container = body.setdefault("container", {})
    if not container.get("image"):
        raise usage("nothing to submit: no job file, and no --image", "headrace job submit --help shows both ways")
    if "command" not in container and "script_b64" not in container:
        raise usage("the job has nothing to run", "give a command after --, or --script FILE")
    fill_in_compute(body.setdefault("compute", {}))


def fill_in_compute(compute: dict[str, Any]) -> None:
    """What flags alone leave open of the hardware."""
    if "accelerator" not in compute:
        if compute.get("gpu_count"):
            raise usage("--gpus needs --accelerator", "headrace accelerators lists the names")
        compute["accelerator"] = "cpu-general"
    if compute["accelerator"].startswith("cpu-"):
        compute.setdefault("gpu_count", 0)
        compute.setdefault("vcpu_count", 1)
    else:
        compute.setdefault("gpu_count", 1)
    compute.setdefault("ephemeral_disk_gb", _DEFAULT_DISK_GB)


def new_idempotency_key() -> str:
    """A key that no other request has."""
    return f"cli-{secrets.token_hex(16)}"


def after_create(client: ApiClient, job: dict[str, Any], *, follow: bool, wait: bool, as_json: bool) -> None:
    """Shows what was made; with `follow` or `wait`, until its end, and exits with its class."""
    job_id = job["id"]
    if follow:
        say(f"submitted {job_id}")
        print_log_lines(follow_logs(client, job_id, on_state=announce), as_json=as_json)
        job = client.get(f"/jobs/{job_id}")
    elif wait:
        say(f"submitted {job_id}")
        job = wait_until_terminal(client, job_id, on_state=announce)
    if follow:
        # stdout holds the log alone.
        for field, value in job_record(job):
            if value is not None and field in {"state", "reason", "exit code", "spend"}:
                say(f"{field}: {value}")
    elif wait or as_json:
        show_job(job, as_json=as_json)
    else:
        put(job_id)
        hint(f"watch it: headrace job logs -f {job_id}")
    if follow or wait:
        raise typer.Exit(of_job(job))
