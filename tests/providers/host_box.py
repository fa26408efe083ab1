"""The inside of a rented machine of the tests: it executes its user data, the real host agent, with stand-ins for
docker and the tools of a machine. The one for docker runs the real agent, and that the workload, as processes here."""

import asyncio
import contextlib
import os
from pathlib import Path

import psutil

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
      PATH=$REAL_PATH TMPDIR=$BOX bash "${agent%%:*}" >"$BOX/output" 2>&1 </dev/null &
      echo $! >"$BOX/pid"; wait $!
      echo $? >"$BOX/ending"; mv "$BOX/ending" "$BOX/ended"
    ) >/dev/null 2>&1 &
    echo container ;;
  wait) until [[ -s $BOX/ended ]]; do PATH=$REAL_PATH sleep 0.05; done; cat "$BOX/ended" ;;
  kill) [[ ! -s $BOX/pid ]] || kill -"${2#--signal=}" "$(cat "$BOX/pid")" ;;
  logs) cat "$BOX/output" ;;
esac
"""
NOTHING = "#!/bin/bash\n"
NOWHERE = "http://127.0.0.1:9"


async def boot(box: Path, user_data: str, metadata: str = NOWHERE) -> asyncio.subprocess.Process:
    """Starts the machine, whose files are in `box`, and whose metadata server has that URL. The process ends once the
    host agent ordered the shutdown."""
    tools = box / "bin"
    tools.mkdir(parents=True)
    (box / "proc").mkdir()
    (box / "proc/meminfo").write_text("MemTotal:       16000000 kB\n")
    for tool, text in {
        "docker": DOCKER,
        **dict.fromkeys(("shutdown", "iptables", "ip6tables", "systemctl"), NOTHING),
    }.items():
        (tools / tool).write_text(text)
        (tools / tool).chmod(0o755)
    (box / "user-data").write_text(user_data)
    path = os.environ["PATH"]
    machine = {"HEADRACE_HOST_ROOT": str(box), "HEADRACE_HOST_METADATA": metadata}
    return await asyncio.create_subprocess_exec(
        "bash",
        str(box / "user-data"),
        "run",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": f"{tools}:{path}", "REAL_PATH": path, "BOX": str(box), **machine},
        cwd=box,
        start_new_session=True,
    )


def cut_power(box: Path) -> None:
    """Everything on the machine ends, without a word: whatever has its box in the environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("BOX") == str(box):
                process.kill()
