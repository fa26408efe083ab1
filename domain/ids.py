"""Identifiers: a type each, and how they are minted."""

import re
import secrets
import string
from typing import NewType

JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
OrgId = NewType("OrgId", str)

_BASE62 = string.digits + string.ascii_letters
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"

# Lower-case letters and digits only: it becomes a container name, a VM name and a label on every backend.
ATTEMPT_PATTERN = re.compile(r"^inst-[a-z2-7]{20}$")


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


def new_job_id() -> JobId:
    """`job_` and 16 base62 characters (95 bits), the form that the seed shows."""
    return JobId("job_" + _random(_BASE62, 16))


def new_attempt_id() -> AttemptId:
    """`inst-` and 20 base32 characters (100 bits). It is the instance's id and its name at the provider."""
    return AttemptId("inst-" + _random(_BASE32, 20))


def new_id(prefix: str) -> str:
    """`prefix_` and 16 base62 characters, for everything that needs no type of its own."""
    return f"{prefix}_{_random(_BASE62, 16)}"


def new_owner_id() -> str:
    """12 base32 characters (60 bits): marks what this installation makes at a provider, in a name, tag or label."""
    return _random(_BASE32, 12)


def new_token() -> str:
    """43 URL-safe characters (256 bits) of a bearer secret."""
    return secrets.token_urlsafe(32)
