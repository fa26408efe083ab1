"""The secrets of a launch: read when the agent fetches its spec, or the image is pulled, and never before.

What an attempt was launched with is kept, sealed, on its row until it is gone: a repeated fetch answers the same, and
its output is masked by what it knows, not by what a rotation has made of it since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import orjson
from sqlmodel import Session, select

from domain.errors import HeadraceError
from domain.images import credential_problem
from domain.secrets import MAX_ENVIRONMENT_BYTES, PULL_KEYS, is_expired
from domain.spec import JobSpec, RegistryCredential, Workload
from domain.states import Reason
from store.secrets import opened, used_by
from store.tables import Instance, Job, Secret
from store.vault import Vault


class CannotLaunch(HeadraceError):
    """A job's secrets are of no use now; trying again changes nothing. The job fails with `reason`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is sealed on the attempt's row. `unseen` are stored secrets that its environment does not hold."""

    env: dict[str, str] = field(repr=False)
    unseen: tuple[str, ...] = field(repr=False)


def resolve(session: Session, vault: Vault, job: Job, instance: Instance, now: datetime) -> dict[str, str]:
    """The values of the job's `secret_env`, and a note of them on the attempt's row, for a launch that begins now.

    Raises:
        CannotLaunch: a secret has expired, or the environment became too large.
        VaultError: a master key is not configured.
    """
    kept = _kept(vault, instance)
    if kept is None:
        if not job.uses_secrets:
            return {}
        # An inline credential stays where it is: it is discarded with the job's end, this with the instance's.
        unseen = () if job.registry_sealed is not None else tuple(pull_passwords(session, vault, job))
        kept = _Kept(_environment(session, vault, job, now), unseen)
        content = orjson.dumps({"env": kept.env, "unseen": kept.unseen})
        instance.secrets_sealed = vault.seal(content, _context(instance))
        session.add(instance)
    return kept.env


def known(session: Session, vault: Vault, instance: Instance) -> Sequence[str]:
    """The secrets that the attempt's workload could write; empty for one that has none, or is gone.

    Raises:
        VaultError: a master key is not configured.
    """
    found: list[str] = []
    kept = _kept(vault, instance)
    if kept is not None:
        found += [*kept.env.values(), *kept.unseen]
    inline = session.exec(select(Job.registry_sealed).where(Job.id == instance.job_id)).first()
    if inline is not None:
        found.append(orjson.loads(vault.open(inline, f"registry:{instance.job_id}"))["password"])
    return found


def require_resolvable(session: Session, job: Job, now: datetime) -> None:
    """For a look before hardware is rented for the job.

    Raises:
        CannotLaunch: one of its secrets has expired.
    """
    if job.uses_secrets:
        for secret in used_by(session, job.id).values():
            _require_current(secret, now)


def pull_credential(session: Session, vault: Vault, job: Job, now: datetime) -> RegistryCredential | None:
    """What the job's image is pulled with: its inline credential, or its stored secret as it is now; None for neither.

    Raises:
        CannotLaunch: the secret has expired, or is no user name and password.
        VaultError: a master key is not configured.
    """
    if job.registry_sealed is not None:
        values = orjson.loads(vault.open(job.registry_sealed, f"registry:{job.id}"))
    else:
        secret_id = JobSpec.model_validate(job.spec).image_pull_secret
        if secret_id is None:
            return None
        secret = session.get(Secret, secret_id)
        if secret is None:
            raise CannotLaunch(Reason.SECRET_EXPIRED, f"the image_pull_secret {secret_id} is no longer there")
        _require_current(secret, now)
        values = opened(vault, secret)
        problem = credential_problem(*(values[key] for key in PULL_KEYS))
        if problem is not None:
            raise CannotLaunch(Reason.IMAGE_PULL_FAILED, f"the image_pull_secret {secret_id}: its {problem}")
    return RegistryCredential(username=values["username"], password=values["password"])


def pull_passwords(session: Session, vault: Vault, job: Job) -> Sequence[str]:
    """The password that the job's image is pulled with, for masking; empty where there is none.

    Raises:
        VaultError: a master key is not configured.
    """
    try:
        # Whether it has expired since does not matter here.
        credential = pull_credential(session, vault, job, job.created_at)
    except CannotLaunch:
        return ()
    return () if credential is None else (credential.password.get_secret_value(),)


def _environment(session: Session, vault: Vault, job: Job, now: datetime) -> dict[str, str]:
    workload = Workload.model_validate_json(vault.open(job.workload_sealed, f"workload:{job.id}"))
    if not workload.secret_env:
        return {}
    secrets = used_by(session, job.id)
    values: dict[str, dict[str, str]] = {}
    env: dict[str, str] = {}
    for name, wanted in workload.secret_env.items():
        if wanted.secret_id not in values:
            secret = secrets[wanted.secret_id]
            _require_current(secret, now)
            values[secret.id] = opened(vault, secret)
        env[name] = values[wanted.secret_id][wanted.key]
    size = sum(len(name) + 1 + len(value.encode()) for name, value in (*workload.env.items(), *env.items()))
    if size > MAX_ENVIRONMENT_BYTES:
        raise CannotLaunch(
            Reason.BOOTSTRAP_FAILED,
            f"env and secret_env are {size} bytes together, and at most {MAX_ENVIRONMENT_BYTES} can be passed",
        )
    return env


def _require_current(secret: Secret, now: datetime) -> None:
    if is_expired(secret.expires_at, now):
        raise CannotLaunch(
            Reason.SECRET_EXPIRED,
            f"the secret {secret.name!r} ({secret.id}) expired at {secret.expires_at:%Y-%m-%dT%H:%M:%SZ}: rotate it",
        )


def _kept(vault: Vault, instance: Instance) -> _Kept | None:
    if instance.secrets_sealed is None:
        return None
    content = orjson.loads(vault.open(instance.secrets_sealed, _context(instance)))
    return _Kept(content["env"], tuple(content["unseen"]))


def _context(instance: Instance) -> str:
    return f"launch:{instance.id}"
