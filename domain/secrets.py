"""Stored secrets: what a job refers to, and what may be done to a secret that a live job refers to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from domain.errors import Conflict
from domain.spec import JobSpec, Workload

MAX_KEYS = 64
MAX_BYTES = 64 * 1024
"""Of one secret: the UTF-8 bytes of its keys and values."""

MAX_ENVIRONMENT_BYTES = 1024 * 1024
"""Of a launch: the UTF-8 bytes of `env` and of the resolved `secret_env`."""

PULL_KEYS = ("username", "password")
"""What a secret must hold to pull an image with; the password may be a token."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A key of a secret that a job needs. `secret_field` and `key_field` are where its request names them."""

    secret_id: str
    key: str
    secret_field: str
    key_field: str


def references(spec: JobSpec, workload: Workload) -> tuple[Reference, ...]:
    """All that the job will need of stored secrets."""
    field = "container.secret_env"
    found = [
        Reference(wanted.secret_id, wanted.key, f"{field}.{name}.secret_id", f"{field}.{name}.key")
        for name, wanted in workload.secret_env.items()
    ]
    if spec.image_pull_secret is not None:
        field = "container.image_pull_secret"
        found += [Reference(spec.image_pull_secret, key, field, field) for key in PULL_KEYS]
    return tuple(found)


def is_expired(expires_at: datetime | None, now: datetime) -> bool:
    """Whether the secret resolves for no new launch any more; None is never."""
    return expires_at is not None and expires_at <= now


def require_keys_kept(secret_id: str, new_keys: Collection[str], used: Mapping[str, str]) -> None:
    """A rotation must keep every key that a live job refers to. `used` maps such keys to one of their jobs.

    Raises:
        Conflict: `secret_key_in_use`, with the keys that are missing.
    """
    missing = sorted(set(used) - set(new_keys))
    if missing:
        raise Conflict(
            f"{secret_id}: the new version lacks {', '.join(missing[:10])}, which live jobs use"
            f" ({used[missing[0]]} for one); keep the keys, or end the jobs",
            code="secret_key_in_use",
            details={"keys": missing, "job_id": used[missing[0]]},
        )
