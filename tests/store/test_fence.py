"""A database that may be a copy or a backup is known as one, until an administrator says that it is the one."""

from pathlib import Path

import pytest
from sqlalchemy import Connection, event
from sqlmodel import Session

from store import fence
from store.bootstrap import first_start
from store.db import Database
from store.logs.blobs import BlobError, FileBlobStore
from store.tables import Installation
from tests.support.clock import SettableClock


class Plane:
    """A database with a file store beside it."""

    def __init__(self, database: Database, folder: Path, clock: SettableClock) -> None:
        self.database, self.blobs, self.clock = database, FileBlobStore(folder), clock
        started = first_start(database, clock())
        assert started is not None
        self.owner_id = started.owner_id

    async def holds(self, *, folder: Path | None = None) -> bool:
        self.clock.advance(300)
        blobs = self.blobs if folder is None else FileBlobStore(folder)
        return await fence.holds(self.database, blobs, self.owner_id, self.clock())

    def backup(self) -> tuple[str | None, str | None]:
        row = self.database.run_read(lambda s: s.get_one(Installation, 1))
        return row.fence, row.fence_before

    def restore(self, backup: tuple[str | None, str | None]) -> None:
        def put(session: Session) -> None:
            row = session.get_one(Installation, 1)
            row.fence, row.fence_before = backup

        self.database.run_write(put)

    def is_fenced(self) -> bool:
        return self.database.run_read(fence.read).fenced


@pytest.fixture
def plane(database: Database, tmp_path: Path, clock: SettableClock) -> Plane:
    return Plane(database, tmp_path / "files", clock)


async def test_the_database_is_the_one_from_its_first_start_on(plane: Plane) -> None:
    assert [await plane.holds() for _ in range(5)] == [True] * 5
    assert not plane.is_fenced()


async def test_a_restored_backup_is_fenced_until_it_is_confirmed(plane: Plane) -> None:
    assert await plane.holds()
    backup = plane.backup()
    assert [await plane.holds() for _ in range(3)] == [True] * 3
    plane.restore(backup)
    assert [await plane.holds() for _ in range(3)] == [False] * 3
    assert plane.is_fenced()
    plane.database.run_write(fence.confirm)
    assert [await plane.holds() for _ in range(3)] == [True] * 3
    assert not plane.is_fenced()


async def test_a_backup_from_before_the_first_look_is_fenced_too(plane: Plane) -> None:
    backup = plane.backup()
    assert await plane.holds()
    plane.restore(backup)
    assert not await plane.holds()


async def test_a_copy_with_a_file_store_of_its_own_is_fenced(plane: Plane, tmp_path: Path) -> None:
    assert await plane.holds()
    assert not await plane.holds(folder=tmp_path / "elsewhere")


async def test_of_a_copy_that_shares_the_file_store_one_is_fenced(plane: Plane) -> None:
    assert await plane.holds()
    copy = plane.backup()
    # The original goes on, the copy looks then.
    assert await plane.holds()
    assert await plane.holds()
    original = plane.backup()
    plane.restore(copy)
    assert not await plane.holds()
    # Confirmed as the one, the copy fences the original.
    plane.database.run_write(fence.confirm)
    assert await plane.holds()
    plane.restore(original)
    assert not await plane.holds()


async def test_a_power_loss_does_not_make_the_database_look_restored(
    sqlite_database: Database, tmp_path: Path, clock: SettableClock
) -> None:
    """The file store must not be ahead of what is on the disk."""
    plane, seen = Plane(sqlite_database, tmp_path / "files", clock), []

    @event.listens_for(sqlite_database.engine, "after_cursor_execute")
    def look(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE installation SET fence="):
            seen.append(int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one()))

    assert await plane.holds()
    full = 2
    assert seen == [full]


async def test_a_worker_that_died_between_the_two_writes_does_no_harm(plane: Plane) -> None:
    assert await plane.holds()
    put, plane.blobs.put = plane.blobs.put, lambda name, data: None  # type: ignore[method-assign]
    assert await plane.holds()
    plane.blobs.put = put  # type: ignore[method-assign]
    assert await plane.holds()
    assert await plane.holds()


async def test_while_the_file_store_does_not_answer_nothing_is_deleted_and_nothing_is_fenced(plane: Plane) -> None:
    assert await plane.holds()

    def fail(*_: object) -> bytes:
        raise BlobError("away")

    get, plane.blobs.get = plane.blobs.get, fail  # type: ignore[method-assign]
    assert not await plane.holds()
    assert not plane.is_fenced()
    plane.blobs.get = get  # type: ignore[method-assign]
    assert await plane.holds()
