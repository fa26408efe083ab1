"""Reads of a run beside the writes of others: a run sees what stands, and neither waits nor fails for it."""

import threading

import pytest
from sqlalchemy import update
from sqlmodel import Session, col
from temporalio.exceptions import ApplicationError

from activities.context import fenced_job
from domain.states import JobState
from store.db import Database
from store.tables import Job
from tests.support.factory import Factory


def test_a_read_beside_an_open_write_answers_what_was_committed(database: Database, factory: Factory) -> None:
    """On PostgreSQL a snapshot that locks would wait for the writer, and then fail for what the writer changed."""
    job_id = factory.job(JobState.PROVISIONING).id
    written, may_commit = threading.Event(), threading.Event()

    def start(session: Session) -> None:
        session.exec(update(Job).where(col(Job.id) == job_id).values(state=JobState.RUNNING.value))
        written.set()
        assert may_commit.wait(30)

    writer = threading.Thread(target=database.run_write, args=(start,))
    writer.start()
    try:
        assert written.wait(30)
        state = database.run_read(lambda session: fenced_job(session, job_id, 0, lock=False).state)
    finally:
        may_commit.set()
        writer.join(30)

    assert state == JobState.PROVISIONING
    assert database.run_read(lambda session: fenced_job(session, job_id, 0, lock=False).state) == JobState.RUNNING


@pytest.mark.parametrize("lock", [True, False])
def test_an_older_run_is_refused(database: Database, factory: Factory, lock: bool) -> None:
    job_id = factory.job(JobState.RUNNING, run_token=2).id

    with pytest.raises(ApplicationError, match="claimed by run number 2; this is number 1"):
        database.run_write(lambda session: fenced_job(session, job_id, 1, lock=lock))
