"""The host agent: the text that makes of a fresh machine the home of one workload. Cloud-init or SSH runs it.

It is the same bytes on every retry of an attempt, and says nothing of the workload but its image. The bootstrap token
is the one secret in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from agent.launch_spec import quote
from domain.networks import PRIVATE
from domain.spec import Port
from domain.ssh_access import SSH_PORT

_END_OF_AGENT = "HEADRACE_AGENT_ENDS"
_FIRST_SSH_PORT = 2222

Cloud = Literal["aws", "gcp"]
"""Those whose metadata the host agent asks whether the machine is to be taken back."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What the host agent is told. `agent` is the agent's own text; `private` says that the image's registry wants what
    the control plane gives for the token; `gpu_count` is how many GPUs the machine must show; `ports` are published at
    the machine's addresses, SSH's among them, as `machine_ports` says; `networks` are private ones (CIDRs) that the
    container reaches all the same; `cloud` is where the machine is, as far as it is
    known how notice is given there; after `lifetime_seconds` it powers itself off, whatever its workload does."""

    url: str
    token: SecretStr
    attempt_id: str
    image: str
    agent: str
    private: bool = False
    gpu_count: int = 0
    ports: tuple[Port, ...] = ()
    networks: tuple[str, ...] = ()
    cloud: Cloud | None = None
    lifetime_seconds: int = 7 * 24 * 3600


def machine_ports(ports: Sequence[Port]) -> dict[int, int]:
    """The machine's port for each of the container's: the same number, but for 22, which the machine's own sshd has: it
    becomes 2222, or the next number that is free."""
    machine = {port.container_port: port.container_port for port in ports if port.container_port != SSH_PORT}
    if any(port.container_port == SSH_PORT for port in ports):
        machine[SSH_PORT] = next(number for number in range(_FIRST_SSH_PORT, 1 << 16) if number not in machine)
    return machine


def host_script(spec: HostSpec) -> str:
    """The bash script that root runs on the machine.

    Raises:
        ValueError: a value has a line break, which the files that the script writes cannot carry; or the agent's text
            holds the line that ends it.
    """
    values = {
        "hh_url": spec.url.rstrip("/"),
        "hh_token": spec.token.get_secret_value(),
        "hh_attempt": spec.attempt_id,
        "hh_image": spec.image,
    }
    for name, value in values.items():
        if any(character in value for character in '\n\r"\\'):
            raise ValueError(f"{name} has a line break, a quote or a backslash")
    if f"\n{_END_OF_AGENT}\n" in f"\n{spec.agent}\n":
        raise ValueError(f"the agent's text has a line {_END_OF_AGENT}")
    lines = [
        "#!/bin/bash",
        *(f"{name}={quote(value)}" for name, value in values.items()),
        f"hh_private={int(spec.private)}",
        f"hh_gpus={spec.gpu_count}",
        f"hh_ports='{' '.join(f'{at}:{inside}' for inside, at in machine_ports(spec.ports).items())}'",
        f"hh_open={quote(' '.join(spec.networks))}",
        f"hh_closed='{' '.join(PRIVATE)}'",
        f"hh_cloud={spec.cloud or ''}",
        f"hh_lifetime_seconds={spec.lifetime_seconds}",
        "hh_agent() {",
        f"cat <<'{_END_OF_AGENT}'",
        spec.agent.removesuffix("\n"),
        _END_OF_AGENT,
        "}",
    ]
    return "\n".join(lines) + "\n" + _body()


@cache
def _body() -> str:
    return (Path(__file__).parent / "host.sh").read_text(encoding="utf-8")
