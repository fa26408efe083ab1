"""Reads of single instances, gathered: EC2 answers some twenty reads a second to an account, and one can ask for many.

A hundred machines that boot, each watched every two seconds, are one request every few milliseconds otherwise.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from domain.errors import Ambiguous, ProviderError
from providers.aws.calls import AwsCalls

_GATHER_SECONDS = 0.01
_INSTANCES = 100
"""In one request; a filter takes 200 values."""

_Waiting = dict[str, list["asyncio.Future[dict[str, Any] | None]"]]


class InstanceReads:
    """Answers each reader from a request that was sent after it asked."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls
        self._waiting: dict[str, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, region: str, instance_id: str) -> dict[str, Any] | None:
        """What AWS says of the instance now; None where it is not among the answers."""
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        if region not in self._waiting:
            self._waiting[region] = defaultdict(list)
            task = asyncio.create_task(self._gather(region))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting[region][instance_id].append(answer)
        return await answer

    async def _gather(self, region: str) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        waiting = self._waiting.pop(region)
        await asyncio.gather(*(self._ask(region, ids, waiting) for ids in _chunks(list(waiting))))

    async def _ask(self, region: str, ids: Sequence[str], waiting: _Waiting) -> None:
        found: Mapping[str, Any] = {}
        failure: Exception | None = None
        what = f"get {ids[0]}" if len(ids) == 1 else f"get {ids[0]} and {len(ids) - 1} others"
        try:
            reservations = await self._calls.pages(
                "ec2",
                region,
                "describe_instances",
                "Reservations",
                what,
                Filters=[{"Name": "instance-id", "Values": list(ids)}],
                MaxResults=1000,
            )
            found = {instance["InstanceId"]: instance for item in reservations for instance in item["Instances"]}
        except ProviderError as error:
            failure = error
        except (KeyError, TypeError) as error:
            failure = Ambiguous(f"{what}: an unreadable answer ({type(error).__name__}: {error})")
        for instance_id in ids:
            for answer in waiting[instance_id]:
                if answer.done():
                    continue
                if failure is not None:
                    answer.set_exception(failure)
                else:
                    answer.set_result(found.get(instance_id))


def _chunks(ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    rest = iter(ids)
    while chunk := tuple(itertools.islice(rest, _INSTANCES)):
        yield chunk
