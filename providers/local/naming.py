"""What a workload is called in an engine: by its owner and its attempt, so that both can be read from the name."""

import re

from domain.errors import ProviderRejected
from domain.ids import AttemptId
from providers.base import Handle

_NAME_LIMIT = 37
"""Of the owner's part: with the attempt's 26 characters a name stays a valid host name."""


def workload_name(owner_id: str, attempt_id: str) -> str:
    """A container name and a host name: the attempt's id comes last, so that it can be read from it."""
    owner = re.sub(r"[^a-zA-Z0-9]+", "-", owner_id).strip("-")[:_NAME_LIMIT] or "headrace"
    return f"{owner}-{attempt_id}"


def attempt_of(handle: Handle) -> AttemptId:
    """The attempt that a handle names.

    Raises:
        ProviderRejected: the handle is not one of ours.
    """
    found = re.search(r"inst-[a-z2-7]{20}$", handle.provider_id)
    if found is None:
        raise ProviderRejected(f"{handle.provider_id!r} is not the name of a workload of an attempt")
    return AttemptId(found[0])
