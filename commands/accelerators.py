"""`headrace accelerators`: what can be asked for."""

from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.options import AsJson, DataDir
from commands.render import print_json, print_record, print_table


def accelerators(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this one alone.", show_default=False)
    ] = None,
    vendor: Annotated[str | None, typer.Option("--vendor", help="nvidia or amd.", show_default=False)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the accelerators of the catalog: GPUs and CPU classes, and what a job may ask of each."""
    with ApiClient(find_credentials(data_dir)) as client:
        if name is not None:
            found = [client.get(f"/catalog/accelerators/{path_part(name, 'accelerator')}")]
        else:
            found = list(client.pages("/catalog/accelerators", {"vendor": vendor, "limit": 200}))
    if as_json:
        print_json(found[0] if name is not None else found)
    elif name is not None:
        print_record([("name", found[0]["name"]), ("is a", found[0]["display_name"]), ("takes", _choices(found[0]))])
    else:
        print_table(("NAME", "IS A", "TAKES"), ((a["name"], a["display_name"], _choices(a)) for a in found))


def _choices(accelerator: dict[str, Any]) -> str:
    if accelerator["hardware_class"] == "cpu":
        vcpu = accelerator["vcpu"]
        return f"{vcpu['min']}-{vcpu['max']} vCPUs, {accelerator['memory_gb_per_vcpu']} GB each"
    counts = ", ".join(str(count) for count in accelerator["gpu_counts"])
    return f"{counts} GPUs of {accelerator['memory_gb']} GB; {', '.join(accelerator['interconnects'])}"
