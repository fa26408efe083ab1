"""The few bytes that fetch the agent: they run what they were told of, whatever version answers, or nothing."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from agent.bootstrap import bootstrap_command, script_digest
from agent.script import agent_script
from domain.clock import utc_now
from domain.spec import Workload
from store.agent_scripts import keep
from tests.agent.site import Attempt, Site, until
from tests.agent.test_faults import image_path

OLDER = "#!/bin/bash\n# The agent of a version before this one.\n"


async def kept(site: Site, text: str, *, digest: str | None = None) -> None:
    """As if a worker had sent machines for it."""
    await site.services.db.write(lambda session: keep(session, digest or script_digest(text), text, utc_now()))


@contextlib.asynccontextmanager
async def booting(attempt: Attempt, url: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A container whose command is the bootstrap; its pauses are short."""
    tools = attempt.site.directory / "tools"
    tools.mkdir()
    (tools / "sleep").write_text("#!/bin/bash\nexec /bin/sleep 0.05\n")
    (tools / "sleep").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TMPDIR": str(attempt.site.directory),
        "HEADRACE_TOKEN": attempt.token,
        "HEADRACE_URL": f"{url}/",
        **variables,
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", bootstrap_command(agent_script()), env=environment, cwd=attempt.site.directory,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    attempt.process = process
    try:
        yield process
    finally:
        attempt.site.kill(attempt)
        await process.wait()


def test_it_is_short_the_same_every_time_and_says_nothing_of_the_attempt() -> None:
    command = bootstrap_command(agent_script())
    assert command == bootstrap_command(agent_script())
    assert len(command) < 1024
    assert script_digest(agent_script()) in command


async def test_it_becomes_the_agent(site: Site, url: str) -> None:
    await kept(site, agent_script())
    attempt = site.attempt(Workload(argv=("bash", "-c", "echo out; env | grep -c HEADRACE_TOKEN; exit 7")))
    async with booting(attempt, url):
        assert await attempt.result() == (7, 0)
    assert attempt.output() == b"out\n0\n"


async def test_one_that_the_control_plane_does_not_know_yet_is_asked_for_again(site: Site, url: str) -> None:
    attempt = site.attempt(Workload(argv=("true",)))
    async with booting(attempt, url) as process:
        assert process.stderr is not None
        assert b"404" in await process.stderr.readline()
        await kept(site, agent_script())
        assert await attempt.result() == (0, 0)


async def test_other_bytes_than_it_was_told_of_are_never_run(site: Site, url: str) -> None:
    ran = site.directory / "ran"
    await kept(site, f"touch {ran}\n", digest=script_digest(agent_script()))
    attempt = site.attempt(Workload(argv=("true",)))
    pauses = site.directory / "pauses"
    async with booting(attempt, url) as process:
        (site.directory / "tools/sleep").write_text(f"#!/bin/bash\necho >>{pauses}\nexec /bin/sleep 0.05\n")
        await until(lambda: pauses.exists() and len(pauses.read_text()) > 1, what="it asks again")
        assert process.returncode is None
    assert not ran.exists()


async def test_an_image_without_curl_is_told_on_the_console(site: Site, url: str, tmp_path: Path) -> None:
    attempt = site.attempt(Workload(argv=("true",)))
    async with booting(attempt, url, PATH=image_path(tmp_path, without="curl")) as process:
        _, said = await process.communicate()
    assert process.returncode == 211
    assert said.startswith(b"headrace-agent: fault: the image has no curl")


async def test_an_upgrade_leaves_the_older_text_to_be_fetched(site: Site, url: str) -> None:
    for text in (OLDER, agent_script(), OLDER):
        await kept(site, text)
    attempt = site.attempt(Workload(argv=("true",)))
    headers = {"Authorization": f"Bearer {attempt.token}"}
    async with httpx.AsyncClient(base_url=f"{url}/agent/v1/script/", headers=headers) as client:
        for text in (OLDER, agent_script()):
            assert (await client.get(script_digest(text))).text == text
        assert (await client.get(script_digest("another"))).status_code == 404
        assert (await client.get("0" * 63)).status_code == 422
        nobody = {"Authorization": "Bearer hrb.inst.x"}
        assert (await client.get(script_digest(OLDER), headers=nobody)).status_code == 401


@pytest.mark.parametrize("text", ["true", "true\n\n", "\0\n"])
def test_a_text_that_bash_would_not_read_to_the_byte_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one line feed"):
        bootstrap_command(text)
