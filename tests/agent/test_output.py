"""What a workload prints arrives whole: each byte once, in order, whatever it is."""

import asyncio
import hashlib
import random

import pytest

from store.db import Database
from store.vault import Vault
from tests.agent.site import Site, open_site, until

LAST_LINES = [
    ("printf 'a\\nb'; exit 1", 1, b"a\nb", b"", ["a", "b"]),
    ("printf x", 0, b"x", b"", ["x"]),
    ("printf oops >&2; exit 2", 2, b"", b"oops", ["oops"]),
]


@pytest.mark.parametrize(("script", "status", "out", "err", "messages"), LAST_LINES)
async def test_the_last_bytes_before_an_exit_are_stored_every_time(
    site: Site, script: str, status: int, out: bytes, err: bytes, messages: list[str]
) -> None:
    gate = asyncio.Semaphore(6)

    async def once() -> None:
        async with gate:
            attempt = await site.run("bash", "-c", script)
            assert await attempt.result() == (status, 0)
            assert (attempt.output(), attempt.output("stderr")) == (out, err)
            assert [line.message for line in await attempt.lines()] == messages

    await asyncio.gather(*(once() for _ in range(34)))


async def test_ten_mebibytes_without_a_newline_arrive_and_so_does_what_follows(site: Site) -> None:
    attempt = await site.run("bash", "-c", "head -c 10485760 /dev/zero | tr '\\0' x; echo; echo normal; exit 7")
    assert await attempt.result(seconds=60) == (7, 0)
    assert len(attempt.output()) == 10_485_760 + 1 + 7
    assert (await attempt.lines())[-1].message == "normal"


async def test_random_bytes_arrive_as_they_are(site: Site) -> None:
    data = random.Random(15).randbytes(1 << 20)
    file = site.directory / "data"
    file.write_bytes(data)
    attempt = await site.run("cat", str(file))
    assert await attempt.result() == (0, 0)
    assert hashlib.sha256(attempt.output()).digest() == hashlib.sha256(data).digest()


async def test_thirty_megabytes_at_full_speed_are_all_there(site: Site) -> None:
    line = "0123456789" * 10
    attempt = await site.run("bash", "-c", f"yes {line} | head -c 30M")
    assert await attempt.result(seconds=90) == (0, 0)
    whole = (line.encode() + b"\n") * ((30 << 20) // len(line))
    assert attempt.output() == whole[: 30 << 20]


async def test_two_streams_written_in_turn_keep_each_their_order(site: Site) -> None:
    attempt = await site.run("bash", "-c", "for ((i = 0; i < 500; i++)); do echo o$i; echo e$i >&2; done")
    assert await attempt.result() == (0, 0)
    assert attempt.output() == b"".join(b"o%d\n" % i for i in range(500))
    assert attempt.output("stderr") == b"".join(b"e%d\n" % i for i in range(500))


async def test_a_line_is_readable_while_the_workload_runs(site: Site) -> None:
    attempt = await site.run("bash", "-c", "echo early; sleep 30")

    async def seen() -> bool:
        return [line.message for line in await attempt.lines()] == ["early"]

    await until(seen, what="the line is readable")
    assert (await attempt.row()).exited_at is None
    await attempt.terminate()
    await attempt.ended()


async def test_a_full_spool_drops_the_flood_and_counts_it_in_band(sqlite_database: Database, vault: Vault) -> None:
    async with open_site(sqlite_database, vault, agent_spool_bytes=1 << 20) as site:
        flood = 20_000_000
        attempt = await site.run(
            "bash", "-c", f"echo first; sleep 0.5; yes 0123456789 | head -c {flood}; echo; echo last; touch done"
        )
        await until(attempt.output, what="the workload runs")
        await site.stop()
        await until((site.directory / "done").exists, what="the flood is over")
        await site.start()
        assert await attempt.result(seconds=60) == (0, 0)
        kept, markers = b"", []
        for line in attempt.output().splitlines(keepends=True):
            if line.startswith(b"[headrace] "):
                assert line.endswith(b" waiting to be sent\n")
                markers.append(int(line.split()[1]))
            else:
                kept += line
        assert markers
        # Each marker begins a line of its own, which may have cost one newline more.
        whole = len("first\n") + flood + len("\nlast\n")
        assert whole <= len(kept) + sum(markers) <= whole + len(markers)
        assert attempt.output().startswith(b"first\n")
