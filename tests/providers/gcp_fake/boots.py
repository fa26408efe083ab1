"""The insides of the tests' machines: each that runs executes its user data, the real host agent, with stand-ins for
docker and the tools of a machine. The one for docker runs the real agent, and that the workload, as processes here."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from tests.providers.gcp_fake.cloud import GcpCloud, Machine

DOCKER = r"""#!/bin/bash
case $1 in
  image) exit 1 ;;
  info) echo runc ;;
  pull) printf 'a: Pulling fs layer\na: Pull complete\n' ;;
  run)
    for word; do
      case $word in
        --env-file=*) variables=${word#--env-file=} ;;
        --volume=*:/headrace-agent.sh:ro) agent=${word#--volume=} ;;
      esac
    done
    (
      set -a; . "$variables"; set +a
      PATH=$REAL_PATH TMPDIR=$BOX bash "${agent%%:*}" >"$BOX/output" 2>&1 </dev/null
      echo $? >"$BOX/ending"; mv "$BOX/ending" "$BOX/ended"
    ) >/dev/null 2>&1 &
    echo container ;;
  wait) until [[ -s $BOX/ended ]]; do PATH=$REAL_PATH sleep 0.05; done; cat "$BOX/ended" ;;
  logs) cat "$BOX/output" ;;
esac
"""
NOTHING = "#!/bin/bash\n"


class Boots:
    """Starts what runs, and ends what Google took away."""

    def __init__(self, cloud: GcpCloud) -> None:
        self._cloud = cloud
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
                    _cut_power(self._directory / name)
                elif name in alive and process.returncode is not None and alive[name].resource["status"] == "RUNNING":
                    # The script's last deed is to order the shutdown.
                    words = "Instance was terminated by the guest."
                    self._cloud.end(alive[name], "compute.instances.guestTerminate", words, delete=False)
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for name, process in self._booted.items():
            _cut_power(self._directory / name)
            await process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _boot(self, name: str, machine: Machine) -> asyncio.subprocess.Process:
        box = self._directory / name
        tools = box / "bin"
        tools.mkdir(parents=True)
        (box / "proc").mkdir()
        (box / "proc/meminfo").write_text("MemTotal:       16000000 kB\n")
        for tool, text in {"docker": DOCKER, **dict.fromkeys(("shutdown", "iptables", "systemctl"), NOTHING)}.items():
            (tools / tool).write_text(text)
            (tools / tool).chmod(0o755)
        items = machine.resource["metadata"]["items"]
        (box / "user-data").write_text(next(item["value"] for item in items if item["key"] == "user-data"))
        path = os.environ["PATH"]
        return await asyncio.create_subprocess_exec(
            "bash",
            str(box / "user-data"),
            "run",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": f"{tools}:{path}", "REAL_PATH": path, "BOX": str(box), "HEADRACE_HOST_ROOT": str(box)},
            cwd=box,
            start_new_session=True,
        )


def _cut_power(box: Path) -> None:
    """Everything on the machine ends, without a word: whatever has its box in the environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("BOX") == str(box):
                process.kill()


@contextlib.asynccontextmanager
async def booting(cloud: GcpCloud) -> AsyncIterator[None]:
    """The cloud's machines live while this is open."""
    boots = Boots(cloud)
    task = asyncio.create_task(boots.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await boots.close()
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or RuntimeError
