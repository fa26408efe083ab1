"""A shipper of log bytes, and whole traversals of a log."""

from store.db import Database
from store.logs.output_mask import OutputMask
from store.logs.store import LogLine, LogStore
from store.tables import Instance
from tests.support.clock import SettableClock


class LogWriter:
    """An agent that ships one stream, and remembers how far it got."""

    def __init__(self, database: Database, logs: LogStore, instance: Instance, clock: SettableClock) -> None:
        self.database, self.logs, self.instance, self.clock = database, logs, instance, clock
        self.offsets = {"stdout": 0, "stderr": 0}
        self.mask: OutputMask | None = None

    def send(self, data: bytes, stream: str = "stdout") -> None:
        ack = self.send_at(self.offsets[stream], data, stream)
        assert not ack
        self.offsets[stream] += len(data)

    def send_at(self, offset: int, data: bytes, stream: str = "stdout") -> bool:
        """Says whether it was refused as a gap."""
        return self.database.run_write(
            lambda s: self.logs.append_chunk(s, self.instance, stream, offset, data, self.clock(), self.mask)
        ).gap

    def system(self, *messages: str, rank: int | None = None) -> None:
        self.database.run_write(
            lambda s: self.logs.append_system(s, self.instance.job_id, messages, self.clock(), instance_rank=rank)
        )

    def finish(self) -> None:
        self.database.run_write(lambda s: self.logs.finish_streams(s, self.instance, self.clock()))

    def acked(self) -> dict[str, int]:
        return self.database.run_read(lambda s: self.logs.acked(s, self.instance.id))


async def everything(
    logs: LogStore, job_id: str, *, source: str | None = None, ascending: bool = True, limit: int = 1000
) -> list[LogLine]:
    """A whole traversal, page by page."""
    lines: list[LogLine] = []
    after: int | None = None
    while True:
        page = await logs.page(job_id, source=source, ascending=ascending, after=after, limit=limit)
        assert len(page.lines) <= limit
        lines += page.lines
        if page.next_after is None:
            assert page.total == len(lines)
            return lines
        # A page of very long lines may be shorter.
        assert page.lines
        assert len(page.lines) == limit or sum(len(line.message) for line in page.lines) > 1_000_000
        after = page.next_after


async def texts(logs: LogStore, job_id: str, **filters: str) -> list[str]:
    return [line.message for line in await everything(logs, job_id, source=filters.get("source"))]
