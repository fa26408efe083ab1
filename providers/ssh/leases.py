"""What a host has promised: a record on the host itself for each attempt, from `create` until it is confirmed gone.

On the host and not in a database, because several control planes may share it, and because it is what a start looks at
last: a workload whose lease is gone, or doomed, must not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from domain.errors import Ambiguous, NoCapacity, ProviderNotFound
from providers.local.process import Completed
from providers.local.records import Record
from providers.ssh import keeper, scripts
from providers.ssh.link import Link
from providers.ssh.settings import SshOptions

_SECONDS = 60.0
_LINES = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """A record, the devices that come with it, and how far it got."""

    record: Record
    gpu_ids: tuple[str, ...]
    begun: bool = False
    """Its workload was started once."""
    doomed: bool = False
    """It is being removed, or was."""
    expired: bool = False
    """The host itself ended it, because its time was over: it holds nothing any more."""


class Leases:
    """The leases of one host."""

    def __init__(self, link: Link, options: SshOptions) -> None:
        self._link = link
        self._options = options
        self._directory = options.directory
        self._keeper = keeper.ensure(options.directory, options.keeper_seconds)

    async def reserve(
        self, record: Record, *, shared: bool, gpus: Sequence[str], slots: int, lifetime_seconds: int | None
    ) -> Lease:
        """The lease, or the one that is there. `gpus` are the host's devices of the model that is wanted. After
        `lifetime_seconds` the host itself ends the job; None: so long after it last saw this control plane as the
        options say.

        Raises:
            NoCapacity: nothing is free, or another organization's jobs are on the host and it may not be `shared`.
            ProviderNotFound: the attempt is being removed.
        """
        script = scripts.reserve(
            self._directory,
            record.name,
            record.model_dump_json(),
            organization=scripts.digest(record.org_id),
            owner=scripts.digest(record.owner_id),
            shared=shared,
            gpus=gpus,
            count=record.gpu_count,
            slots=slots,
            engine=record.engine,
            lifetime_seconds=lifetime_seconds or self._options.lifetime_seconds,
            renewed=lifetime_seconds is None,
            keeper=self._keeper,
        )
        answer = await self._link.run(script, timeout=_SECONDS)
        host = self._link.target.hostname
        if answer.returncode == scripts.FULL:
            wanted = f"{record.gpu_count} {record.accelerator}" if record.gpu_count else "a slot"
            raise NoCapacity(f"{wanted} wanted on {host}, and {len(gpus) or slots} are there, not all of them free")
        if answer.returncode == scripts.FOREIGN:
            raise NoCapacity(f"jobs of another organization run on {host}, which is not shared between organizations")
        if answer.returncode == scripts.DOOMED:
            raise ProviderNotFound(f"{record.attempt_id} is being removed from {host}")
        lines = self._checked(answer).stdout.splitlines()
        return _lease("lease", lines)

    async def all(self, owner_id: str) -> list[Lease]:
        """Every lease of the host, whoever's. The host notes that `owner_id` is there, and its timer runs."""
        seen = scripts.touch_seen(self._directory, scripts.digest(owner_id))
        return await self._read(f"{seen}\n{self._keeper}\n{scripts.leases(self._directory)}")

    async def of(self, name: str) -> Lease | None:
        """One lease; None where there is none."""
        return next(iter(await self._read(scripts.leases(self._directory, name))), None)

    async def is_wanted(self, name: str) -> bool:
        """Whether it is there and not doomed."""
        return (await self._link.run(scripts.is_wanted(self._directory, name), timeout=_SECONDS)).returncode == 0

    async def mark_begun(self, name: str, also: str = "") -> None:
        """Its workload was started; `also` is run on the host by the same command."""
        script = f"{also}\n{scripts.mark_begun(self._directory, name)}"
        self._checked(await self._link.run(script, timeout=_SECONDS))

    async def doom(self, name: str) -> None:
        self._checked(await self._link.run(scripts.doom(self._directory, name), timeout=_SECONDS))

    async def forget(self, name: str) -> None:
        self._checked(await self._link.run(scripts.forget(self._directory, name), timeout=_SECONDS))

    async def _read(self, script: str) -> list[Lease]:
        answer = self._checked(await self._link.run(script, timeout=_SECONDS))
        lines = answer.stdout.splitlines()
        if len(lines) % _LINES:
            raise Ambiguous(f"{self._link.target.hostname} lists its leases in a way that cannot be read")
        return [_lease(lines[i].rpartition(" ")[2], lines[i + 1 : i + _LINES]) for i in range(0, len(lines), _LINES)]

    def _checked(self, answer: Completed) -> Completed:
        if answer.returncode != 0:
            raise Ambiguous(f"{self._link.target.hostname} cannot keep its leases: {answer.last_line}")
        return answer


def _lease(state: str, lines: list[str]) -> Lease:
    try:
        head, text = lines
        devices = head.split()[1]
        record = Record.model_validate_json(text)
    except (ValueError, IndexError, ValidationError) as error:
        raise Ambiguous("a lease on the host cannot be read") from error
    return Lease(
        record,
        gpu_ids=() if devices == "cpu" else tuple(devices.split(",")),
        begun=state in ("begun", "doomed", "expired"),
        doomed=state in ("doomed", "expired"),
        expired=state == "expired",
    )
