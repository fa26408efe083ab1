"""Lists of jobs that are over: what is kept of them is what a fresh reading says."""

from sqlalchemy import update
from sqlmodel import col

from domain.states import InstanceState, JobState
from store.tables import Instance
from tests.api.conftest import Api
from tests.support.clock import SettableClock
from tests.support.factory import Factory


def test_a_job_that_is_over_is_listed_the_same_again_and_as_it_is_got(
    api: Api, factory: Factory, clock: SettableClock
) -> None:
    job = factory.job(state=JobState.SUCCEEDED, terminal_at=clock())
    instance = factory.instance(job, state=InstanceState.SUCCEEDED, allocated_at=clock(), confirmed_absent_at=clock())
    factory.price(instance, "6.00")

    first = api.get("/jobs").json()["data"]
    clock.advance(hours=5)

    assert api.get("/jobs").json()["data"] == first == [api.get(f"/jobs/{job.id}").json()]


def test_a_job_whose_hardware_is_not_gone_yet_costs_more_in_the_next_list(
    api: Api, factory: Factory, clock: SettableClock
) -> None:
    job = factory.job(state=JobState.SUCCEEDED, terminal_at=clock())
    instance = factory.instance(job, state=InstanceState.SUCCEEDED, allocated_at=clock())
    factory.price(instance, "6.00")

    clock.advance(minutes=10)
    assert api.get("/jobs").json()["data"][0]["accrued_usd"] == 1
    clock.advance(minutes=10)
    gone = update(Instance).where(col(Instance.id) == instance.id).values(confirmed_absent_at=clock())
    api.write(lambda session: session.exec(gone))
    clock.advance(minutes=10)
    assert api.get("/jobs").json()["data"][0]["accrued_usd"] == 2
