"""After a backup was restored the reconciler only tells of what the database does not know, until it is confirmed."""

from sqlmodel import Session
from temporalio.testing import ActivityEnvironment

from activities.reconcile import ReconcileActivities
from domain.states import JobState
from store.tables import Installation
from tests.support.control_plane import ControlPlane


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
    assert await plane.cloud.alive() == []
    assert not (await plane.client.get("/api/v1/admin/orphans")).json()["fenced"]
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
