"""What is secret is in no command line, and the agent's tokens are not in the workload's environment."""

import asyncio
import threading
from pathlib import Path

from domain.ids import AttemptId
from domain.spec import Workload
from tests.agent.site import Site


class CommandLines:
    """Samples the command line of every process, as fast as it can, until it is stopped."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "CommandLines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.is_set():
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        self.seen.add((entry / "cmdline").read_bytes())
                    except OSError:
                        continue


async def test_tokens_and_values_are_in_no_command_line_and_no_environment_of_the_workload(site: Site) -> None:
    canary = "canary-7f3a"
    script = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; cat /proc/self/environ | tr '\\0' '\\n'"
    workload = Workload(argv=("bash", "-c", script), env={"PASSWORD": canary})
    with CommandLines() as lines:
        attempt = await site.launch(workload)
        assert await attempt.result() == (0, 0)
        await asyncio.sleep(0)
    nonce = (await attempt.row()).nonce
    assert nonce is not None
    session_token = site.services.vault.session_token(AttemptId(attempt.instance.id), nonce)
    seen = b"\n".join(lines.seen)
    assert b"curl\0-q\0-s" in seen, "the sampler saw the agent at work"
    for secret in (attempt.token, session_token, canary):
        assert secret.encode() not in seen
    environment = attempt.output().decode()
    assert f"PASSWORD={canary}" in environment
    assert attempt.token not in environment
    assert session_token not in environment
    assert "HEADRACE_TOKEN" not in environment


async def test_the_agents_directory_is_private_and_gone_at_the_end(site: Site) -> None:
    script = "stat -c '%a %n' $TMPDIR/headrace-* $TMPDIR/headrace-*/curl | cut -d ' ' -f 1"
    attempt = await site.run("bash", "-c", script)
    assert await attempt.result() == (0, 0)
    assert attempt.output() == b"700\n600\n"
    assert not list(site.directory.glob("headrace-*"))
