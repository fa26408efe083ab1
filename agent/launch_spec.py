"""The launch spec: what the control plane answers to an agent's first request, as bash that the agent sources.

Every value is a single-quoted literal, so nothing of it is ever interpreted. A script follows the code as base64,
behind a `return`: bash reads no further, and the agent decodes it from the line that the code names.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from domain.spec import Workload

MINIMUM_SPOOL_BYTES = 1 << 20
_SCRIPT = '"$hr_dir/script"'
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Variables that bash keeps to itself: assigning them fails, or does not end up in the environment as given. The agent
# passes these, and names that bash cannot spell, through `env`; the names of its own variables (hr_) as well.
_BASH_OWN = frozenset(
    """UID EUID PPID GROUPS SHELLOPTS SHLVL RANDOM SRANDOM SECONDS LINENO HISTCMD EPOCHSECONDS EPOCHREALTIME FUNCNAME
    FUNCNEST DIRSTACK PIPESTATUS OPTIND OPTERR OPTARG IFS PWD OLDPWD POSIXLY_CORRECT EXECIGNORE COMP_WORDBREAKS
    GLOBIGNORE IGNOREEOF TMOUT _""".split()  # noqa: SIM905 - words read better than one line each
)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All that the agent of one attempt needs. `secrets` are the resolved values of the workload's `secret_env`."""

    session_token: str
    workload: Workload
    platform_env: Mapping[str, str]
    """Injected by the control plane (HF_ENDPOINT, HEADRACE_JOB_ID, ...); it wins over the user's."""
    spool_bytes: int
    orders_wait_seconds: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssh_public_key: str | None = None


def render(spec: LaunchSpec) -> bytes:
    """The bash fragment.

    Raises:
        ValueError: a value holds NUL, which neither an argument nor an environment can carry.
    """
    environment = {**spec.workload.env, **spec.secrets, **spec.platform_env}
    exported = {name: value for name, value in environment.items() if _bash_can_export(name)}
    odd = [f"{name}={value}" for name, value in environment.items() if name not in exported]
    payload = base64.encodebytes((spec.workload.script or "").encode()) if spec.workload.argv is None else b""
    lines = [
        f"hr_session={quote(spec.session_token)}",
        f"hr_spool_bytes={max(spec.spool_bytes, MINIMUM_SPOOL_BYTES)}",
        f"hr_orders_wait={spec.orders_wait_seconds}",
        f"hr_ssh_key={quote(spec.ssh_public_key or '')}",
        f"hr_argv=({' '.join(_command(spec.workload))})",
        f"hr_odd_env=({_quoted(odd)})",
        "hr_export() {",
        *(f"export {name}={quote(value)}" for name, value in exported.items()),
        ":",
        "}",
    ]
    code = "\n".join(lines) + "\n"
    # The two lines below are lines of the answer too; values may hold newlines, hence the count.
    first_line = code.count("\n") + 3 if spec.workload.argv is None else 0
    return f"{code}hr_payload_line={first_line}\nreturn 0\n".encode() + payload


def quote(value: str) -> str:
    """A bash literal of exactly `value`."""
    if "\0" in value:
        raise ValueError("NUL cannot be passed to a process")
    return "'" + value.replace("'", "'\\''") + "'"


def _quoted(values: Iterable[str]) -> str:
    return " ".join(quote(value) for value in values)


def _command(workload: Workload) -> list[str]:
    """The bash words of the command: the argv, or the script's interpreter, as the kernel reads it, and its file."""
    if workload.argv is not None:
        return [quote(argument) for argument in workload.argv]
    first_line = (workload.script or "").partition("\n")[0]
    if not first_line.startswith("#!") or not first_line[2:].strip(" \t"):
        return ['"$BASH"', _SCRIPT]
    interpreter, *argument = first_line[2:].strip(" \t").split(None, 1)
    return [quote(interpreter), *(quote(word) for word in argument), _SCRIPT]


def _bash_can_export(name: str) -> bool:
    own = name in _BASH_OWN or name.startswith(("BASH", "hr_"))
    return _IDENTIFIER.fullmatch(name) is not None and not own
