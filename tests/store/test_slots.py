"""Slots of a backend: never more in use than there are, and a freed one is announced to the oldest job in line."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlmodel import col, select

from domain.offers import Offer
from domain.states import JobState
from store import attempts, inbox, slots
from store.db import Database
from store.slots import SlotsTaken
from store.tables import InboxRow, Instance, Job, SlotWaiter
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def running(factory: Factory) -> Instance:
    """An attempt that holds a slot."""
    return factory.instance(factory.job(JobState.RUNNING))


@pytest.fixture
def in_line(database: Database, factory: Factory, clock: SettableClock) -> list[Job]:
    """Three jobs in line, the oldest first."""
    jobs = [factory.job(JobState.ALLOCATING, created_at=clock() + timedelta(seconds=n)) for n in (1, 2, 3)]
    for job in reversed(jobs):
        database.run_write(lambda s, job=job: slots.line_up(s, job))
    return jobs


def _gone(database: Database, instance: Instance, clock: SettableClock) -> None:
    database.run_write(lambda s: attempts.gone(s, attempts.locked(s, instance.id), clock()))


def _told(database: Database) -> list[str]:
    query = select(InboxRow.job_id).where(InboxRow.kind == inbox.CAPACITY).order_by(col(InboxRow.id))
    return list(database.run_read(lambda s: s.exec(query).all()))


def test_a_freed_slot_is_told_to_the_oldest_in_line_once(
    database: Database, clock: SettableClock, running: Instance, in_line: list[Job]
) -> None:
    _gone(database, running, clock)
    _gone(database, running, clock)
    assert _told(database) == [in_line[0].id]


def test_a_refused_create_frees_its_slot(
    database: Database, clock: SettableClock, running: Instance, in_line: list[Job]
) -> None:
    database.run_write(
        lambda s: attempts.refused(s, attempts.locked(s, running.id), "no_capacity", "sold out", clock())
    )
    assert _told(database) == [in_line[0].id]


def test_who_was_terminated_in_line_is_passed_over(
    database: Database, clock: SettableClock, factory: Factory, running: Instance, in_line: list[Job]
) -> None:
    def terminate(session: object) -> None:
        job = session.get_one(Job, in_line[0].id)  # type: ignore[attr-defined]
        job.state = JobState.TERMINATED

    database.run_write(terminate)
    _gone(database, running, clock)
    assert _told(database) == [in_line[1].id]
    left = database.run_read(lambda s: list(s.exec(select(SlotWaiter.job_id)).all()))
    assert left == [in_line[2].id]


def test_lining_up_again_keeps_one_place_and_leaving_gives_it_up(database: Database, in_line: list[Job]) -> None:
    database.run_write(lambda s: slots.line_up(s, in_line[1]))
    database.run_write(lambda s: slots.leave_line(s, in_line[0].id))
    left = database.run_read(lambda s: set(s.exec(select(SlotWaiter.job_id)).all()))
    assert left == {in_line[1].id, in_line[2].id}


def test_slots_freed_at_the_same_moment_are_told_to_as_many_jobs(
    database: Database, factory: Factory, clock: SettableClock, in_line: list[Job]
) -> None:
    holders = [factory.instance(factory.job(JobState.RUNNING)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda instance: _gone(database, instance, clock), holders))
    assert sorted(_told(database)) == sorted(job.id for job in in_line)


def test_concurrent_minters_never_pass_the_number_of_slots(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    jobs = [factory.job(JobState.ALLOCATING) for _ in range(12)]
    offer = Offer.model_validate(factory.instance(factory.job(JobState.RUNNING)).offer)

    def mint(job: Job) -> Instance | SlotsTaken:
        return database.run_write(lambda s: attempts.mint(s, job, offer, clock(), slots=4, single_tenant=False))

    with ThreadPoolExecutor(12) as pool:
        minted = list(pool.map(mint, jobs))
    assert sum(isinstance(one, Instance) for one in minted) == 3
