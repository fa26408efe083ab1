"""What an instance may leave behind: its volume, which bills until it is deleted, and its security group, which can be
deleted only once the instance has let go of it. Both are found by the attempt's tags."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from domain.errors import ProviderNotFound
from providers.aws.calls import AwsCalls
from providers.aws.errors import InUse
from providers.aws.views import ATTEMPT_TAG, GROUP, OWNER_TAG, VOLUME, leftover_view
from providers.base import Handle, InstanceView, TerminateState


@dataclass(frozen=True, slots=True)
class _Kind:
    """How EC2 names a kind of resource in its calls."""

    resource_type: str
    describe: str
    items: str
    id_key: str
    id_filter: str
    delete: str


_VOLUME = _Kind(VOLUME, "describe_volumes", "Volumes", "VolumeId", "volume-id", "delete_volume")
_GROUP = _Kind(GROUP, "describe_security_groups", "SecurityGroups", "GroupId", "group-id", "delete_security_group")
_KINDS = {kind.resource_type: kind for kind in (_VOLUME, _GROUP)}


class Leftovers:
    """The volumes and security groups of a connection's attempts."""

    def __init__(self, calls: AwsCalls, owner_id: str, page_size: int) -> None:
        self._calls = calls
        self._owner_id = owner_id
        self._page_size = page_size

    async def get(self, handle: Handle, region: str) -> InstanceView | None:
        kind = _KINDS[handle.resource_type]
        found = await self._described(kind, region, f"get {handle.provider_id}", kind.id_filter, handle.provider_id)
        return _view(kind, found[0], region) if found else None

    async def owned(self, region: str, what: str) -> list[InstanceView]:
        """All that no instance holds by the look of it. A group does not say who holds it."""
        found = await self._tagged(region, what, OWNER_TAG, self._owner_id)
        return [_view(kind, item, region) for kind, item in found if _may_be_deleted(kind, item)]

    async def delete(self, handle: Handle, region: str, what: str) -> TerminateState:
        """Deletes what the handle names."""
        kind = _KINDS[handle.resource_type]
        await self._delete(kind, region, what, handle.provider_id)
        left = await self._described(kind, region, what, kind.id_filter, handle.provider_id)
        return TerminateState.REQUESTED if left else TerminateState.GONE

    async def delete_of(self, handle: Handle, region: str, what: str) -> TerminateState:
        """Deletes what an instance that is no more has left; gone when a look finds nothing."""
        attempt = handle.data.get("attempt")
        if not attempt:
            return TerminateState.GONE
        left = await self._tagged(region, what, ATTEMPT_TAG, attempt)
        for kind, item in left:
            if _may_be_deleted(kind, item):
                await self._delete(kind, region, what, str(item.get(kind.id_key)))
        # Its charges go on until it is known to be gone: no round is waited for that is not needed.
        left = left and await self._tagged(region, what, ATTEMPT_TAG, attempt)
        return TerminateState.REQUESTED if left else TerminateState.GONE

    async def discard_group(self, region: str, group_id: str, what: str) -> None:
        """Deletes the group of an instance that was not made."""
        await self._delete(_GROUP, region, what, group_id)

    async def _delete(self, kind: _Kind, region: str, what: str, item_id: str) -> None:
        # What is in use will be asked for again: for a moment, a dead instance holds its group still.
        with contextlib.suppress(ProviderNotFound, InUse):
            await self._calls.call("ec2", region, kind.delete, what, **{kind.id_key: item_id})

    async def _tagged(self, region: str, what: str, tag: str, value: str) -> list[tuple[_Kind, dict[str, Any]]]:
        """Of every kind."""
        kinds = tuple(_KINDS.values())
        lists = await asyncio.gather(*(self._described(kind, region, what, f"tag:{tag}", value) for kind in kinds))
        return [(kind, item) for kind, items in zip(kinds, lists, strict=True) for item in items]

    async def _described(self, kind: _Kind, region: str, what: str, name: str, value: str) -> Sequence[dict[str, Any]]:
        filters = [{"Name": name, "Values": [value]}]
        return await self._calls.pages(
            "ec2", region, kind.describe, kind.items, what, Filters=filters, MaxResults=self._page_size
        )


def _view(kind: _Kind, item: Mapping[str, Any], region: str) -> InstanceView:
    return leftover_view(item, kind.resource_type, kind.id_key, region)


def _may_be_deleted(kind: _Kind, item: Mapping[str, Any]) -> bool:
    """A volume that is attached goes with its instance."""
    return kind is _GROUP or item.get("State") == "available"
