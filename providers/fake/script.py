"""What a simulated agent does, and how it learns it: a rule set by the test, or the job's own argv.

A job whose command is `["fake", "{...}"]` carries its script as JSON in the second argument.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

_COMMAND = "fake"


class AgentScript(BaseModel):
    """One simulated run. Times are in seconds; the default says one line and exits 0 at once."""

    model_config = ConfigDict(extra="forbid")

    never_hello: bool = False
    hold_boot: bool = False
    """The machine goes on booting until it is released, or made to fail."""
    hold_run: bool = False
    """The workload goes on, its output written, until it is released, told to stop, or loses its machine."""
    hello_delay_seconds: float = 0
    fault: str | None = None
    """Reported in place of a launch: what the image lacks."""
    run_seconds: float = 0
    stdout: str = "fake\n"
    stderr: str = ""
    repeat: int = 1
    """How many times the output is written, spread evenly over `run_seconds`."""
    status: int = 0
    signal: int = 0
    notice: bool = False
    """Its cloud gives notice, once the output is written, and the workload is told."""
    ignore_stop: bool = False
    """Goes on running after a stop order, and keeps polling."""
    silent_after_seconds: float | None = None
    """From this long after the start on, the agent contacts nobody, while the workload runs on."""


class ScriptRule(BaseModel):
    """The script of instances that match; the first `skip` of them are left to later rules, `times` None is all."""

    model_config = ConfigDict(extra="forbid")

    script: AgentScript
    job: str | None = None
    attempt: str | None = None
    offer: str | None = None
    skip: int = 0
    times: int | None = None

    _seen: int = PrivateAttr(default=0)

    def matches(self, labels: Mapping[str, str | None]) -> bool:
        """Whether an instance with these labels runs this script. Counts the instance."""
        wanted = {"job": self.job, "attempt": self.attempt, "offer": self.offer}
        if any(value is not None and labels.get(name) != value for name, value in wanted.items()):
            return False
        self._seen += 1
        nth = self._seen - self.skip
        return nth > 0 and (self.times is None or nth <= self.times)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the simulated agent needs of a launch spec."""

    session_token: str
    orders_wait_seconds: int
    script: AgentScript | None
    """None where the job's command is not a fake one."""


class UnreadableLaunch(Exception):
    """The launch spec is not the shell fragment that agents of protocol 1 source."""


def read_launch(fragment: str) -> Launch:
    """Reads the assignments of the shell fragment that a real agent would source; values are single-quoted literals.

    Raises:
        UnreadableLaunch: no such fragment, or the script in the job's argv is not valid.
    """
    # What follows the last `return 0` is a payload for agents that run scripts.
    code = fragment.rpartition("\nreturn 0\n")[0] or fragment
    lexer = shlex.shlex(code, posix=True, punctuation_chars="()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise UnreadableLaunch(f"launch spec of {len(fragment)} characters: {error}") from None
    assigned = dict(word.split("=", 1) for word in words if word.startswith(("hr_session=", "hr_orders_wait=")))
    if "hr_session" not in assigned or "hr_argv=" not in words:
        raise UnreadableLaunch(f"launch spec of {len(fragment)} characters without session or argv")
    wait = int(assigned.get("hr_orders_wait", "30"))
    argv = words[words.index("hr_argv=") + 2 :]
    if argv[0] != _COMMAND:
        return Launch(assigned["hr_session"], wait, None)
    try:
        return Launch(assigned["hr_session"], wait, AgentScript.model_validate_json(argv[1]))
    except ValidationError as error:
        raise UnreadableLaunch(f"the script of the job is not valid: {error}") from None
