"""After a backup was restored, or beside the database that it was copied from, nothing is deleted at a provider: what
would be is told of, until it is confirmed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import Session
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.context import Context
from activities.deallocate import DeallocateActivities
from activities.reconcile import ReconcileActivities
from activities.recovery import sweep
from domain.states import JobState
from store import fence
from store.db import Database
from store.logs.blobs import BlobError, FileBlobStore
from store.tables import ConnectionSweep, Installation
from store.temporal import connect
from tests.support.control_plane import ControlPlane
from tests.support.temporal import running_dev_server
from workflows.contract import DeallocationInput, FailureType


async def test_a_restored_backup_deletes_no_machine_before_it_is_confirmed(plane: ControlPlane) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    reconcile = ReconcileActivities(plane.context).reconcile_connection
    await ActivityEnvironment().run(reconcile, "fake")
    job_id = await plane.fake(run_seconds=60)
    await plane.until_state(job_id, JobState.RUNNING)
    (attempt,) = await plane.attempts(job_id)
    assert attempt.handle is not None
    now = plane.services.clock()

    def restore(session: Session) -> None:
        """To the row, the machine is over; the fence is one of long ago."""
        row = session.get_one(type(attempt), attempt.id)
        row.confirmed_absent_at = row.terminal_at = now
        session.get_one(Installation, 1).fence = session.get_one(Installation, 1).fence_before = "older"

    await plane.services.db.write(restore)
    for _ in range(2):
        report = await ActivityEnvironment().run(reconcile, "fake")
        assert "1 orphans only reported" in report
    assert [machine["attempt"] for machine in await plane.cloud.alive()] == [attempt.id]

    told = (await plane.client.get("/api/v1/admin/orphans")).json()
    assert told["fenced"]
    assert [row["provider_id"] for row in told["data"]] == [attempt.handle["provider_id"]]
    confirmed = await plane.client.post("/api/v1/admin/orphans/confirm")
    assert confirmed.status_code == 200
    report = await ActivityEnvironment().run(reconcile, "fake")
    assert "1 orphans deleted" in report
    swept = await plane.services.db.read(lambda session: session.get_one(ConnectionSweep, "fake"))
    assert (swept.orphans_deleted, swept.missing) == (1, 0)
    assert await plane.cloud.alive() == []
    assert not (await plane.client.get("/api/v1/admin/orphans")).json()["fenced"]
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)


@contextmanager
def copied(original: Context, folder: Path) -> Iterator[Context]:
    """A worker on a copy of the database, with a file store of its own and the same account at the cloud. It is a
    minute later there: whatever has a time to settle is looked at."""
    path = folder / "copy.db"
    with (
        closing(sqlite3.connect(original.db.url.removeprefix("sqlite:///"))) as source,
        closing(sqlite3.connect(path)) as target,
    ):
        source.backup(target)
    database = Database(f"sqlite:///{path}")
    yield Context(
        original.settings,
        database,
        original.vault,
        original.logs,
        FileBlobStore(folder / "files"),
        lambda: original.clock() + timedelta(minutes=1),
        original.providers,
        original.owner_id,
    )
    database.close()


async def test_a_copy_beside_a_temporal_of_its_own_ends_nothing_of_the_original(
    plane: ControlPlane, tmp_path: Path
) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    job_id = await plane.fake(hold_run=True)
    await plane.until_state(job_id, JobState.RUNNING)
    (attempt,) = await plane.attempts(job_id)
    deletion = DeallocationInput(job_id, attempt.id)
    with copied(plane.context, tmp_path) as copy, running_dev_server() as address:
        temporal = await connect(copy.settings.model_copy(update={"temporal_address": address}), copy.vault)
        activities = DeallocateActivities(copy)

        assert await sweep(copy, temporal) == []
        for call in (activities.deallocate, activities.confirm_absence):
            with pytest.raises(ApplicationError) as refused:
                await ActivityEnvironment().run(call, deletion)
            assert refused.value.type == FailureType.MAY_BE_A_COPY
        assert [machine["attempt"] for machine in await plane.cloud.alive()] == [attempt.id]

        await copy.db.write(fence.confirm)
        assert await sweep(copy, temporal) == [job_id]
        await ActivityEnvironment().run(activities.deallocate, deletion)
        assert await plane.cloud.alive() == []
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)


async def test_a_file_store_that_fails_later_holds_no_deletion_up(plane: ControlPlane) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    job_id = await plane.fake(hold_run=True)
    await plane.until_state(job_id, JobState.RUNNING)

    def fail(*_: object) -> bytes:
        raise BlobError("away")

    plane.context.blobs.get = fail  # type: ignore[method-assign]
    await plane.terminate(job_id)
    await plane.until_gone(job_id)
    assert await plane.cloud.alive() == []
