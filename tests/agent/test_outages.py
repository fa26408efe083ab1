"""The control plane may be away, and connections may break anywhere: the workload runs on, each byte arrives once."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.agent.site import Site, until


class FlakyWire:
    """A Unix socket before the site's, which cuts connections after so many bytes and delays answers, by a schedule."""

    def __init__(self, upstream: Path, schedule: random.Random, cuts: int) -> None:
        self._upstream, self._schedule = upstream, schedule
        self.cuts_left = cuts

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        server, request = await asyncio.open_unix_connection(self._upstream)
        directions = [self._pass_on(client, request, 0), self._pass_on(server, answer, 0.02)]
        tasks = [asyncio.create_task(direction) for direction in directions]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for writer in (request, answer):
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        cut_after = None
        if self.cuts_left and self._schedule.random() < 0.5:
            self.cuts_left -= 1
            cut_after = int(self._schedule.expovariate(1 / 2_000)) if delay == 0 else self._schedule.randrange(200)
        while data := await reader.read(1 << 16):
            if cut_after is not None and len(data) > cut_after:
                writer.write(data[:cut_after])
                await writer.drain()
                return
            if cut_after is not None:
                cut_after -= len(data)
            await asyncio.sleep(self._schedule.random() * delay)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def flaky(site: Site, *, seed: int, cuts: int) -> AsyncIterator[tuple[Path, FlakyWire]]:
    wire = FlakyWire(site.settings.agent_socket, random.Random(seed), cuts)
    path = site.directory / "flaky.sock"
    server = await asyncio.start_unix_server(wire.serve, path)
    try:
        yield path, wire
    finally:
        server.close()


async def test_each_byte_arrives_once_however_often_the_connection_is_cut(site: Site) -> None:
    script = """
    for ((i = 0; ; i++)); do
        echo "out $i"; echo "err $i" >&2
        ((i % 40)) || sleep 0.02
        [[ -e stop ]] && break
    done
    echo $i >count
    exit 3
    """
    async with flaky(site, seed=17, cuts=50) as (socket, wire):
        attempt = await site.run("bash", "-c", script, socket=socket)
        await until(lambda: wire.cuts_left == 0, seconds=100, what="all cuts")
        (site.directory / "stop").touch()
        assert await attempt.result(seconds=60) == (3, 0)
    count = int((site.directory / "count").read_text()) + 1
    assert attempt.output() == b"".join(b"out %d\n" % i for i in range(count))
    assert attempt.output("stderr") == b"".join(b"err %d\n" % i for i in range(count))
    messages = [line.message for line in await attempt.lines() if line.stream == "stdout"]
    assert messages == [f"out {i}" for i in range(count)]


async def test_a_control_plane_that_is_away_disturbs_no_workload_and_gets_all_of_its_output(site: Site) -> None:
    attempt = await site.run("bash", "-c", "for i in 1 2 3 4; do echo $i; sleep 0.4; done; touch end; exit 5")
    await until(attempt.output, what="the first line")
    await site.stop()
    await until((site.directory / "end").exists, what="the workload's end")
    await asyncio.sleep(0.5)
    assert attempt.process is not None
    assert attempt.process.returncode is None
    await site.start()
    assert await attempt.result() == (5, 0)
    assert attempt.output() == b"1\n2\n3\n4\n"


async def test_an_agent_that_starts_before_the_control_plane_waits_for_it(site: Site) -> None:
    await site.stop()
    attempt = await site.run("echo", "hi")
    await asyncio.sleep(0.5)
    await site.start()
    assert await attempt.result() == (0, 0)
    assert attempt.output() == b"hi\n"


async def test_output_lost_by_a_server_that_went_back_is_counted_and_the_rest_still_arrives(site: Site) -> None:
    attempt = await site.run("bash", "-c", "echo one; until [[ -e go ]]; do sleep 0.05; done; echo two")
    await until(lambda: attempt.output() == b"one\n", what="the first line")
    await site.forget_output(attempt)
    (site.directory / "go").touch()
    assert await attempt.result() == (0, 0)
    text = b"\n[headrace] 4 bytes of output lost: the server has gone back behind what it had acknowledged\n"
    assert attempt.output() == text + b"two\n"
