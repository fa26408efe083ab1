"""`headrace quote`: whether a configuration can be had now, where, and for how much."""

from pathlib import Path
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials
from commands.exits import ExitCode
from commands.job_file import merge, read_job_file
from commands.options import AsJson, DataDir, OnBehalfOf
from commands.render import amount, print_json, print_table, put
from commands.submit import fill_in_compute

_ANY_IMAGE = "localhost/any"
"""Which image it is decides nothing; whether it is a private one is said by the secret."""


def quote(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.yaml]", help="A job file, which is not run.", show_default=False)
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
        int | None, typer.Option("--disk", help="Ephemeral disk in GB. Default: 10.", show_default=False)
    ] = None,
    ssh: Annotated[bool, typer.Option("--ssh", help="With SSH access.")] = False,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="Only this provider. Repeatable.", show_default=False)
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option("--region", help="Only this region. Repeatable.", show_default=False)
    ] = None,
    spot: Annotated[
        str | None, typer.Option("--spot", help="never, allow or only. Default: never.", show_default=False)
    ] = None,
    max_price: Annotated[
        float | None, typer.Option("--max-price", help="At most so many USD an hour.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    on_behalf_of: OnBehalfOf = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a job could run now, where, and for how much; nothing is reserved."""
    body = _quoted(read_job_file(file)) if file is not None else {}
    merge(
        body,
        {
            ("compute", "accelerator"): accelerator,
            ("compute", "gpu_count"): gpus,
            ("compute", "vcpu_count"): vcpus,
            ("compute", "ephemeral_disk_gb"): disk,
            ("access", "ssh"): ssh or None,
            ("placement", "providers"): provider or None,
            ("placement", "regions"): region or None,
            ("placement", "spot"): spot,
            ("placement", "max_price_usd_hr"): max_price,
            ("resource_type",): "job",
        },
    )
    if file is None:
        fill_in_compute(body.setdefault("compute", {}))
    body.setdefault("container", {}).setdefault("image", _ANY_IMAGE)
    with ApiClient(find_credentials(data_dir), on_behalf_of=on_behalf_of) as client:
        answer = client.post("/catalog/quotes", body)
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if not answer["available"]:
        raise typer.Exit(ExitCode.JOB_NO_CAPACITY)


def _quoted(job: dict[str, Any]) -> dict[str, Any]:
    """What of a job file a quote asks about."""
    body: dict[str, Any] = {name: job[name] for name in ("compute", "placement", "volumes") if name in job}
    container = job.get("container")
    if isinstance(container, dict):
        body["container"] = {k: v for k, v in container.items() if k in {"image", "image_pull_secret", "ports"}}
    access = job.get("access")
    if isinstance(access, dict) and access.get("ssh_public_key"):
        body["access"] = {"ssh": True}
    return body


def _show(answer: dict[str, Any]) -> None:
    put(f"available, {_prices(answer)} per hour" if answer["available"] else "not available")
    if answer.get("providers"):
        rows = (
            (entry["provider"], "yes" if entry["available"] else "no", _prices(entry), entry.get("reason") or "")
            for entry in answer["providers"]
        )
        print_table(("PROVIDER", "AVAILABLE", "PER HOUR", "WHY NOT"), rows)


def _prices(entry: dict[str, Any]) -> str:
    found = entry["price_usd_hr"]
    if found is None:
        return ""
    least, most = amount(found["min"]), amount(found["max"])
    return f"{least}" if least == most else f"{least} to {most}"
