"""What a simulated agent does, and how it learns it: a rule set by the test, or the job's own argv.

A job whose command is `["fake", "{...}"]` carries its script as JSON in the second argument.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

_SESSION_TOKEN_PREFIX = "hrs."  # noqa: S105 - how a session token is told from other words, not a secret
_COMMAND = "fake"


class AgentScript(BaseModel):
    """One simulated run. Times are in seconds; the default says one line and exits 0 at once."""

    model_config = ConfigDict(extra="forbid")

    never_hello: bool = False
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
    script: AgentScript | None
    """None where the job's command is not a fake one."""


class UnreadableLaunch(Exception):
    """The launch spec is not a shell fragment with a session token in it."""


def read_launch(fragment: str) -> Launch:
    """Reads the shell fragment that a real agent would source, knowing only its quoting: the session token is the value
    that begins with `hrs.`; the script is the word after `fake` in whichever array begins with that word."""
    lexer = shlex.shlex(fragment, posix=True, punctuation_chars="()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise UnreadableLaunch(f"launch spec of {len(fragment)} characters: {error}") from None
    values = [word.partition("=")[2] if "=" in word else word for word in words]
    token = next((value for value in values if value.startswith(_SESSION_TOKEN_PREFIX)), None)
    if token is None:
        raise UnreadableLaunch(f"launch spec of {len(fragment)} characters has no session token")
    for before, word, argument in zip(words, words[1:], words[2:], strict=False):
        if before == "(" and word == _COMMAND:
            try:
                return Launch(token, AgentScript.model_validate_json(argument))
            except ValidationError as error:
                raise UnreadableLaunch(f"the script of the job is not valid: {error}") from None
    return Launch(token, None)
