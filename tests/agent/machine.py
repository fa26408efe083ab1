"""A machine for the host agent's script, that is a directory which stands for its root, with stand-ins for docker,
shutdown and the like on its PATH; and the control plane that it talks to."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pydantic import SecretStr

from agent.host import HostSpec, host_script
from agent.script import agent_script

TOKEN = "hrb.inst-canary.9f3c1d7e"
ATTEMPT = "inst-abcdefghijklmnopqrst"
IMAGE = "registry.example/team/model:1.0"

DOCKER = r"""#!/bin/bash
printf '%s\n' "$*" >>"$BOX/argv"
case $1 in
  image) exit 1 ;;
  info) echo "io.containerd.runc.v2 $(cat "$BOX/runtimes" 2>/dev/null)" ;;
  pull)
    [[ -z $DOCKER_CONFIG ]] || cp -p "$DOCKER_CONFIG/config.json" "$BOX/config"
    echo "$(( $(cat "$BOX/pulls" 2>/dev/null) + 1 ))" >"$BOX/pulls"
    if [[ -s $BOX/pull-fails && $(cat "$BOX/pulls") -le $(cat "$BOX/pull-fails") ]]; then
      cat "$BOX/pull-says" >&2
      exit 1
    fi
    printf 'a: Pulling fs layer\nb: Already exists\na: Pull complete\nStatus: Downloaded\n' ;;
  run) for word; do [[ $word == --env-file=* ]] && cp "${word#--env-file=}" "$BOX/env"; done; echo container ;;
  kill) rm -f "$BOX/runs" ;;
  wait)
    while [[ -e $BOX/runs ]]; do /bin/sleep 0.02; done
    [[ -s $BOX/restarts ]] && rm "$BOX/restarts" && exit 1
    cat "$BOX/status" 2>/dev/null || echo 0 ;;
  logs) echo 'headrace-agent: fault: the image has no curl' ;;
esac
"""
RECORDER = '#!/bin/bash\nprintf "%s %s\\n" "${0##*/}" "$*" >>"$BOX/calls"\n'


@dataclass
class Plane:
    """What the control plane was told."""

    url: str
    posts: list[tuple[str, str, str]] = field(default_factory=list)
    registry: tuple[int, str] = (204, "")

    def lines(self, route: str) -> list[str]:
        return [body for path, _, body in self.posts if path.partition("?")[0] == f"/agent/v1/{route}"]


@contextlib.contextmanager
def open_plane() -> Iterator[Plane]:
    """A control plane that takes what a host agent says."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            plane.posts.append((self.path, self.headers["Authorization"], body))
            status, answer = plane.registry if self.path == "/agent/v1/registry" else (200, "")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    plane = Plane(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield plane
    server.shutdown()
    thread.join()
    server.server_close()


class Machine:
    """A directory that stands for a machine's root, and the tools that it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bin = path / "bin"
        self._bin.mkdir()
        (path / "proc").mkdir()
        (path / "proc/meminfo").write_text("MemTotal:       16000000 kB\n")
        self.tool("docker", DOCKER)
        for name in ("shutdown", "iptables", "ip6tables", "systemctl", "sleep"):
            self.tool(name, RECORDER)

    def tool(self, name: str, text: str) -> None:
        (self._bin / name).write_text(text)
        (self._bin / name).chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def read(self, name: str) -> str:
        path = self.path / name
        return path.read_text() if path.exists() else ""

    def boot(self, script: str, *, under: Sequence[str] = (), **variables: str) -> str:
        """Runs the script as a boot would, by a command and with further variables; its console."""
        file = self.path / "part-001"
        file.write_text(script)
        environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "BOX": str(self.path),
            "HEADRACE_HOST_ROOT": str(self.path),
            **variables,
        }
        done = subprocess.run(
            [*under, "bash", str(file), "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


def script_for(plane: Plane, **changes: object) -> str:
    """What the machine runs; `changes` are fields of its spec."""
    values: dict[str, object] = {
        "url": plane.url, "token": SecretStr(TOKEN), "attempt_id": ATTEMPT, "image": IMAGE, "agent": agent_script(),
        **changes,
    }  # fmt: skip
    return host_script(HostSpec(**values))  # type: ignore[arg-type]
