"""What a request about a secret may hold. Values are never part of an error."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints

from api.compute.moments import Moment
from api.compute.requests import Name, Request, at_most, matching, refusal
from domain.secrets import MAX_BYTES, MAX_KEYS, is_expired
from store.secrets import Values

SecretKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128),
    matching(r"[A-Za-z0-9_.-]+", "must be letters, digits, underscores, dots or dashes"),
]
Data = Annotated[dict[SecretKey, SecretStr], at_most(MAX_KEYS)]
_DATA = f"Values by their keys, write-only: 1-{MAX_KEYS} keys, {MAX_BYTES // 1024} KiB in all."


class SecretRotate(Request):
    """All values of the next version. Keys that live jobs refer to must be among them."""

    data: Data = Field(min_length=1, description=_DATA)
    expires_at: Moment | None = Field(
        default=None, description="In the future: it stops to resolve for new launches. Absent or null is never."
    )


class SecretCreate(SecretRotate):
    """A secret: named values of the organization, for `secret_env` and `image_pull_secret`."""

    name: Name = Field(description="Unique in the organization.")


EXAMPLE_SECRET = {"name": "artifact-repository", "data": {"HF_TOKEN": "hf_..."}}
EXAMPLE_ROTATION = {"data": {"HF_TOKEN": "hf_..."}, "expires_at": "2027-01-31T12:00:00Z"}


def values_of(request: SecretRotate, now: datetime) -> Values:
    """The values to seal.

    Raises:
        InvalidRequest: they are larger than 64 KiB together, or expire in the past.
    """
    data = {key: value.get_secret_value() for key, value in request.data.items()}
    if sum(len(key) + len(value.encode()) for key, value in data.items()) > MAX_BYTES:
        raise refusal("data", f"keys and values are larger than {MAX_BYTES} bytes together", MAX_BYTES)
    if is_expired(request.expires_at, now):
        raise refusal("expires_at", "must be in the future; leave it out for never")
    return Values(data, request.expires_at)
