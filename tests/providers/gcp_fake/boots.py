"""The insides of Google's machines: each that runs executes its user data, until Google takes it away."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.providers import host_box
from tests.providers.gcp_fake.cloud import GcpCloud, Machine
from tests.providers.gcp_fake.server import METADATA


class Boots:
    """Starts what runs, and ends what Google took away."""

    def __init__(self, cloud: GcpCloud, url: str) -> None:
        self._cloud = cloud
        self._url = url
        self._directory = Path(tempfile.mkdtemp(prefix="gcp-"))
        self._booted: dict[str, asyncio.subprocess.Process] = {}
        self._cut: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            alive = {machine.resource["name"]: machine for machine in list(self._cloud.machines.values())}
            for name, machine in alive.items():
                if name not in self._booted and machine.resource["status"] == "RUNNING":
                    self._booted[name] = await self._boot(name, machine)
            for name, process in self._booted.items():
                if name not in alive and name not in self._cut:
                    self._cut.add(name)
                    host_box.cut_power(self._directory / name)
                elif name in alive and process.returncode is not None and alive[name].resource["status"] == "RUNNING":
                    # The script's last deed is to order the shutdown.
                    words = "Instance was terminated by the guest."
                    self._cloud.end(alive[name], "compute.instances.guestTerminate", words, delete=False)
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for name, process in self._booted.items():
            host_box.cut_power(self._directory / name)
            await process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _boot(self, name: str, machine: Machine) -> asyncio.subprocess.Process:
        items = machine.resource["metadata"]["items"]
        user_data = next(item["value"] for item in items if item["key"] == "user-data")
        return await host_box.boot(self._directory / name, user_data, f"{self._url}{METADATA}/{name}")


@contextlib.asynccontextmanager
async def booting(cloud: GcpCloud, url: str) -> AsyncIterator[None]:
    """The cloud's machines live while this is open; its server is at the URL."""
    boots = Boots(cloud, url)
    task = asyncio.create_task(boots.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await boots.close()
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or RuntimeError
