"""`headrace job`: what there is to do with jobs that exist."""

from typing import Annotated

import typer

from commands import ssh, submit
from commands.client import ApiClient, find_credentials, path_part
from commands.exits import of_job
from commands.follow import announce, follow_logs, wait_until_terminal
from commands.options import AsJson, DataDir, OnBehalfOf
from commands.render import amount, hardware, hint, moment, print_json, print_log_lines, print_table, show_job

app = typer.Typer(no_args_is_help=True, help="Submit, watch and end jobs.")
app.command("submit")(submit.submit)
app.command("ssh")(ssh.ssh)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, job_...", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many to show at most.")]


@app.command("list")
def list_jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this state.", show_default=False)] = None,
    limit: Limit = 50,
    data_dir: DataDir = None,
    on_behalf_of: OnBehalfOf = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    with ApiClient(find_credentials(data_dir), on_behalf_of=on_behalf_of) as client:
        jobs = list(client.pages("/jobs", {"state": state}, limit=limit))
    if as_json:
        print_json(jobs)
        return
    print_table(
        ("JOB", "NAME", "STATE", "HARDWARE", "CREATED", "SPEND"),
        (
            (
                job["id"],
                job.get("name") or "-",
                job["state"],
                hardware(job),
                moment(job["created_at"]) or "-",
                amount(job.get("accrued_usd")) or "-",
            )
            for job in jobs
        ),
    )
    if not jobs:
        hint("submit one: headrace job submit examples/hello.yaml")


@app.command("get")
def get_job(job_id: JobArgument, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a job: state, reason, hardware, times, spend, endpoints."""
    with ApiClient(find_credentials(data_dir)) as client:
        show_job(client.get(f"/jobs/{path_part(job_id, 'job')}"), as_json=as_json)


@app.command("logs")
def logs(
    job_id: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="`user` (the workload) or `system` (allocation, pull, notices).", show_default=False
        ),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="The time before each line.")] = False,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Print a job's log: the workload's lines as they are, those of the system with `[system]` before them."""
    path_part(job_id, "job")
    with ApiClient(find_credentials(data_dir)) as client:
        if follow:
            lines = follow_logs(client, job_id, source=source, on_state=announce)
        else:
            lines = client.pages(f"/jobs/{job_id}/logs", {"source": source, "limit": 1000})
        print_log_lines(lines, timestamps=timestamps, as_json=as_json)


@app.command("events")
def events(job_id: JobArgument, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what happened to a job, in order."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages(f"/jobs/{path_part(job_id, 'job')}/events", {"limit": 1000}))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TIME", "EVENT", "DETAILS"),
        (
            (
                moment(event["timestamp"]) or "-",
                event["type"],
                ", ".join(f"{name}={value}" for name, value in event["data"].items()),
            )
            for event in found
        ),
    )


@app.command("instances")
def instances(job_id: JobArgument, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the instances that a job had: one for every attempt."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages(f"/jobs/{path_part(job_id, 'job')}/instances"))
    if as_json:
        print_json(found)
        return
    print_table(
        ("INSTANCE", "AT THE PROVIDER", "STATE", "ALLOCATED", "GONE", "PRICE/H"),
        (
            (
                instance["id"],
                instance["provider_id"] or "-",
                instance["state"],
                moment(instance.get("allocated_at")) or "-",
                moment(instance.get("confirmed_absent_at")) or "-",
                amount(instance.get("price_usd_hr")) or "-",
            )
            for instance in found
        ),
    )


@app.command("terminate")
def terminate(job_id: JobArgument, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a job now. Its workload is killed at once; to repeat this, or on a job that has ended, changes nothing."""
    with ApiClient(find_credentials(data_dir)) as client:
        job = client.post(f"/jobs/{path_part(job_id, 'job')}/terminate")
    show_job(job, as_json=as_json)


@app.command("wait")
def wait(
    job_id: JobArgument,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds; then exit 124.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a job has ended. The exit code says how it ended: see the table in `headrace --help`."""
    path_part(job_id, "job")
    with ApiClient(find_credentials(data_dir)) as client:
        job = wait_until_terminal(client, job_id, timeout_seconds=timeout, on_state=announce)
    show_job(job, as_json=as_json)
    raise typer.Exit(of_job(job))


@app.command("rerun")
def rerun(
    job_id: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stream the new job's log until it ends.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a job again, as a new job with the same image, command, environment and limits."""
    with ApiClient(find_credentials(data_dir)) as client:
        key = submit.new_idempotency_key()
        job = client.post(f"/jobs/{path_part(job_id, 'job')}/rerun", headers={"Idempotency-Key": key})
        submit.after_create(client, job, follow=follow, wait=False, as_json=as_json)
