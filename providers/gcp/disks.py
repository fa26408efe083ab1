"""The boot disk of an attempt: it goes with its instance, and bills on where it does not."""

import contextlib
from typing import Any

from domain.errors import ProviderNotFound
from providers.base import InstanceView, TerminateState
from providers.gcp.calls import GcpCalls
from providers.gcp.views import OWNER_LABEL, disk_view, label_filter

_DISK, _OPERATION = "compute#disk", "compute#operation"


class Disks:
    """The disks that this control plane makes in the project."""

    def __init__(self, calls: GcpCalls, owner_id: str) -> None:
        self._calls = calls
        self._owner_id = owner_id

    async def view(self, name: str, zone: str, what: str) -> InstanceView | None:
        """The disk now; None if it is not there."""
        disk = await self._read(name, zone, what)
        return None if disk is None else disk_view(disk)

    async def delete(self, name: str, zone: str, what: str) -> TerminateState:
        """Asks for the deletion of a disk that no instance holds any more."""
        disk = await self._read(name, zone, what)
        if disk is None:
            return TerminateState.GONE
        if not disk.users:
            with contextlib.suppress(ProviderNotFound):
                await self._calls.call("Disks", "delete_unary", what, kind=_OPERATION, zone=zone, disk=name)
        return TerminateState.REQUESTED

    async def list_alone(self, what: str) -> list[InstanceView]:
        """Those in all zones that no instance holds."""
        labels = {OWNER_LABEL: self._owner_id}
        pages = await self._calls.pages(
            "Disks", "aggregated_list", what, kind="compute#diskAggregatedList", filter=label_filter(labels)
        )
        disks = [disk for page in pages for scope in page.items.values() for disk in scope.disks]
        views = [disk_view(disk) for disk in disks]
        return [
            view
            for view, disk in zip(views, disks, strict=True)
            if not disk.users and labels.items() <= dict(disk.labels).items()
        ]

    async def _read(self, name: str, zone: str, what: str) -> Any | None:
        try:
            return await self._calls.call("Disks", "get", what, kind=_DISK, zone=zone, disk=name)
        except ProviderNotFound:
            return None
