"""The fault schedule: which call goes wrong, how, and how often. And the journal: every call, with what was done to it.

A fault strikes at one of three stages of a call: `before` it does anything, after the `resources` of a create were made
and before its instance is, or `after` all was done, when only the answer suffers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr


class Operation(StrEnum):
    """`find` is a list narrowed to one attempt."""

    VERIFY = "verify"
    OFFERS = "offers"
    CREATE = "create"
    GET = "get"
    FIND = "find"
    LIST = "list"
    DELETE = "delete"
    LOGS = "logs"


READS = frozenset({Operation.GET, Operation.FIND, Operation.LIST})


class Answer(StrEnum):
    """What is answered instead of the truth."""

    RESET = "reset"
    CUT = "cut"
    """The connection ends in the middle of the body."""
    TRUNCATED = "truncated"
    """Half of the JSON, as if it were all."""
    HTML_502 = "html_502"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    NO_CAPACITY = "no_capacity"
    QUOTA = "quota"
    AUTH = "auth"
    PERMISSION = "permission"
    BILLING = "billing"
    RATE_LIMIT = "rate_limit"
    INVALID = "invalid"
    NOT_FOUND = "not_found"
    DISCONTINUED = "discontinued"
    """403, as a cloud that says "already discontinued" of a machine that it may still list."""
    DELETE_REFUSED = "delete_refused"
    """409, as during a minimum reservation."""
    ECHO = "echo"
    """400 with the whole request in the message, secrets and all."""


REFUSALS: Mapping[Answer, tuple[int, str, str]] = {
    Answer.INTERNAL: (500, "internal", "something went wrong on our side"),
    Answer.UNAVAILABLE: (503, "unavailable", "try again later"),
    Answer.NO_CAPACITY: (409, "no_capacity", "no machine of this type is free"),
    Answer.QUOTA: (403, "quota_exceeded", "your quota does not allow it"),
    Answer.AUTH: (401, "unauthenticated", "the API key is not known"),
    Answer.PERMISSION: (403, "forbidden", "the API key may not do this"),
    Answer.BILLING: (402, "payment_required", "the account has no credit"),
    Answer.RATE_LIMIT: (429, "rate_limited", "too many requests"),
    Answer.INVALID: (422, "invalid_request", "the request is not valid"),
    Answer.NOT_FOUND: (404, "not_found", "there is no such resource"),
    Answer.DISCONTINUED: (403, "already_discontinued", "the instance is already discontinued"),
    Answer.DELETE_REFUSED: (409, "delete_refused", "the instance cannot be deleted yet"),
    Answer.ECHO: (400, "invalid_request", "cannot handle the request: "),
}


class Fault(BaseModel):
    """One entry of the schedule. It strikes matching calls after the first `skip`, `times` times (None: for ever)."""

    model_config = ConfigDict(extra="forbid")

    operation: Operation
    job: str | None = None
    attempt: str | None = None
    offer: str | None = None
    skip: int = 0
    times: int | None = 1

    stage: Literal["before", "resources", "after"] = "before"
    answer: Answer | None = None
    status: int | None = Field(default=None, description="Answered instead of the HTTP status that would be right.")
    retry_after_seconds: float | None = None
    message_bytes: int = Field(default=0, description="Pads the error's message to this length.")
    delay_before_seconds: float = Field(default=0, description="The call hangs, then does its work.")
    delay_after_seconds: float = Field(default=0, description="The call does its work, hangs, then answers.")

    hide_calls: int = Field(default=0, description="Create: this many reads do not see the instance.")
    hide_seconds: float = Field(default=0, description="Create: no read sees the instance for so long.")
    hide_from: frozenset[Operation] = READS
    price_usd_hr: Decimal | None = Field(default=None, description="Create: the instance's price, whatever the offer.")
    shown_status: str | None = Field(default=None, description="Create: the status that reads show, whatever it is.")
    boot_failure: str | None = Field(default=None, description="Create: the code with which the boot fails.")
    boot_message: str = ""
    linger_calls: int = Field(default=0, description="Delete: so many reads still see the instance, running.")
    linger_seconds: float = Field(default=0, description="Delete: the instance still runs for so long.")
    drop_items: int = Field(default=0, description="List, find and offers: the page lacks so many of its items.")

    _seen: int = PrivateAttr(default=0)

    def strikes(self, operation: Operation, labels: Mapping[str, str | None]) -> bool:
        """Whether this call is one of its calls, and one of those that it spoils. Counts the call."""
        if operation is not self.operation:
            return False
        wanted = {"job": self.job, "attempt": self.attempt, "offer": self.offer}
        if any(value is not None and labels.get(name) != value for name, value in wanted.items()):
            return False
        self._seen += 1
        nth = self._seen - self.skip
        return nth > 0 and (self.times is None or nth <= self.times)


NO_FAULT = Fault(operation=Operation.VERIFY, times=0)


@dataclass
class Call:
    """One call in the journal. `done` says whether the cloud did what was asked; `status` is None while it hangs, and
    0 where no answer was given."""

    number: int
    at: datetime
    operation: Operation
    labels: dict[str, str | None]
    fault: str | None = None
    status: int | None = None
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "at": self.at.isoformat(),
            "operation": self.operation.value,
            **self.labels,
            "fault": self.fault,
            "status": self.status,
            "done": self.done,
        }


@dataclass
class Schedule:
    """Faults in the order in which they were set (the first that strikes counts), and the journal."""

    faults: list[Fault] = field(default_factory=list)
    journal: list[Call] = field(default_factory=list)

    def open_call(self, operation: Operation, labels: dict[str, str | None], now: datetime) -> tuple[Call, Fault]:
        """Notes the call and picks its fault; `NO_FAULT` for a call that goes well."""
        call = Call(len(self.journal) + 1, now, operation, labels)
        self.journal.append(call)
        for fault in self.faults:
            if fault.strikes(operation, labels):
                call.fault = fault.answer.value if fault.answer else "altered"
                return call, fault
        return call, NO_FAULT
