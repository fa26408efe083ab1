"""`headrace job ssh`: a shell in the workload, from a client that knows its host key beforehand."""

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.options import AsJson, DataDir
from commands.render import hint, print_json
from domain.ssh_access import known_hosts_line


def ssh(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, job_...", show_default=False)],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Run this, not a shell.", show_default=False)
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", "-i", help="The private key's file, as for ssh.", show_default=False)
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the command, and run nothing.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Open a shell in a job, or run a command there. Its host key is checked; the exit code is that of ssh."""
    with ApiClient(find_credentials(data_dir)) as client:
        job = client.get(f"/jobs/{path_part(job_id, 'job')}")
    access = _access(job)
    known_hosts = known_hosts_line(access["host"], access["port"], access["host_key"])
    if as_json:
        print_json({**access, "known_hosts": known_hosts})
        return
    if print_only:
        typer.echo(shlex.join(arguments(access, command or (), identity, None)))
        hint(f"its line for known_hosts: {known_hosts}")
        return
    if shutil.which("ssh") is None:
        raise CommandError("there is no ssh on this machine", code=ExitCode.USAGE, hints=("install openssh-client",))
    with tempfile.TemporaryDirectory(prefix="headrace-ssh-") as directory:
        file = Path(directory, "known_hosts")
        file.write_text(known_hosts + "\n")
        done = subprocess.run(arguments(access, command or (), identity, file), check=False)
    raise typer.Exit(done.returncode)


def arguments(
    access: Mapping[str, Any], command: Sequence[str], identity: Path | None, known_hosts: Path | None
) -> list[str]:
    """ssh's argument list; with `known_hosts` it trusts what is in that file, and nothing else."""
    words = ["ssh", "-p", str(access["port"])]
    if identity is not None:
        words += ["-i", str(identity)]
    if known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"]
        words += ["-o", "StrictHostKeyChecking=yes"]
    # A shell there reads what ssh is given: one word may be a line for it, several are to arrive as they are.
    remote = [shlex.join(command) if len(command) > 1 else command[0]] if command else []
    return [*words, "--", f"{access['user']}@{access['host']}", *remote]


def _access(job: Mapping[str, Any]) -> Mapping[str, Any]:
    access: Mapping[str, Any] | None = job.get("ssh")
    if access is not None and access.get("host_key"):
        return access
    hints = (
        "it has SSH while it runs, when it was submitted with access.ssh_public_key and its image has sshd",
        f"headrace job logs --source system {job['id']} says whether its sshd did not start",
    )
    raise CommandError(f"{job['id']} ({job['state']}) has no SSH", code=ExitCode.NOT_FOUND, hints=hints)
