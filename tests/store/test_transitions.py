"""Whatever is asked in whatever order, a job follows its state machine, with one event a change and a final end."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlmodel import col, select

from domain.states import EventType, JobState, Reason, may_become
from store.db import Database
from store.tables import Job, JobEvent
from store.transitions import Outcome, record, transition
from tests.support.clock import SettableClock
from tests.support.factory import Factory


def job_of(database: Database, job_id: str) -> Job:
    return database.run_read(lambda s: s.get_one(Job, job_id))


def events_of(database: Database, job_id: str) -> list[JobEvent]:
    query = select(JobEvent).where(JobEvent.job_id == job_id).order_by(col(JobEvent.seq))
    return list(database.run_read(lambda s: s.exec(query).all()))


@pytest.fixture
def move(database: Database, clock: SettableClock) -> Any:
    """`transition`, in a transaction of its own, at the clock's time."""

    def run(job: Job, wanted: JobState, transition_id: str, **more: Any) -> Outcome:
        return database.run_write(lambda s: transition(s, job.id, wanted, transition_id, clock(), **more))

    return run


def test_an_allowed_transition_is_applied_with_its_event(
    database: Database, factory: Factory, clock: SettableClock, move: Any
) -> None:
    job = factory.job(JobState.PROVISIONING)
    clock.advance(5)
    outcome = move(job, JobState.RUNNING, "t", data={"more": 1}, values={"started_at": clock()})
    assert outcome == Outcome(True, JobState.RUNNING)
    stored = job_of(database, job.id)
    assert (stored.state, stored.started_at) == ("running", clock())
    (event,) = events_of(database, job.id)
    assert event.type == EventType.STATE_CHANGED
    assert event.data == {"from": "provisioning", "to": "running", "more": 1}
    assert event.at == clock()


def test_the_same_transition_again_is_success_and_writes_nothing(
    database: Database, factory: Factory, clock: SettableClock, move: Any
) -> None:
    job = factory.job(JobState.PROVISIONING)
    move(job, JobState.RUNNING, "t", values={"started_at": clock()})
    first = clock()
    clock.advance(60)
    outcome = move(job, JobState.RUNNING, "t", values={"started_at": clock()})
    assert outcome == Outcome(False, JobState.RUNNING, repeated=True)
    assert outcome
    assert job_of(database, job.id).started_at == first
    assert len(events_of(database, job.id)) == 1


def test_the_same_transition_again_does_not_move_back_a_job_that_went_on(
    database: Database, factory: Factory, move: Any
) -> None:
    """`provisioning -> allocating` is allowed, but this one was made before: a retried writer repeats itself."""
    job = factory.job()
    move(job, JobState.ALLOCATING, "allocating")
    move(job, JobState.PROVISIONING, "provisioning")
    assert move(job, JobState.ALLOCATING, "allocating") == Outcome(False, JobState.PROVISIONING, repeated=True)
    assert job_of(database, job.id).state == "provisioning"
    assert move(job, JobState.ALLOCATING, "allocating-2").applied


def test_another_transition_to_the_same_state_is_refused(factory: Factory, move: Any) -> None:
    job = factory.job(JobState.PROVISIONING)
    move(job, JobState.RUNNING, "t")
    outcome = move(job, JobState.RUNNING, "u")
    assert outcome == Outcome(False, JobState.RUNNING)
    assert not outcome


def test_a_forbidden_transition_is_refused_and_writes_nothing(database: Database, factory: Factory, move: Any) -> None:
    job = factory.job(JobState.FINALIZING)
    assert move(job, JobState.TERMINATING, "t") == Outcome(False, JobState.FINALIZING)
    assert events_of(database, job.id) == []


def test_only_from_narrows_what_is_allowed(factory: Factory, move: Any) -> None:
    job = factory.job(JobState.RUNNING)
    assert not move(job, JobState.ALLOCATING, "t", only_from=frozenset({JobState.PROVISIONING}))
    assert move(job, JobState.ALLOCATING, "t", only_from=frozenset({JobState.RUNNING}))


def test_an_event_with_the_same_id_is_no_transition(factory: Factory, database: Database, clock: SettableClock) -> None:
    job = factory.job(JobState.TERMINATED)
    database.run_write(lambda s: record(s, job.id, EventType.LATE_EXIT, "exit", clock(), {}))
    outcome = database.run_write(lambda s: transition(s, job.id, JobState.FINALIZING, "exit", clock()))
    assert outcome == Outcome(False, JobState.TERMINATED)


def test_the_end_wipes_the_registry_credential_and_keeps_the_reason(
    database: Database, factory: Factory, clock: SettableClock, move: Any
) -> None:
    job = factory.job(JobState.TERMINATING, registry_sealed=b"sealed")
    outcome = move(job, JobState.TERMINATED, "t", reason=Reason.USER_REQUESTED, message="why", details={"a": 1})
    assert outcome.applied
    stored = job_of(database, job.id)
    assert (stored.registry_sealed, stored.terminal_at) == (None, clock())
    assert (stored.reason_code, stored.reason_message, stored.reason_details) == ("user_requested", "why", {"a": 1})
    assert events_of(database, job.id)[0].data["reason"] == "user_requested"


def test_a_message_that_no_database_can_hold_does_not_stop_the_job(
    database: Database, factory: Factory, move: Any
) -> None:
    job = factory.job(JobState.RUNNING)
    assert move(job, JobState.FAILED, "t", reason=Reason.PROVIDER_ERROR, message="a\0b")
    assert job_of(database, job.id).reason_message == "a\ufffdb"
    assert events_of(database, job.id)[0].data["message"] == "a\0b"


def test_an_unknown_job_is_an_error(database: Database, clock: SettableClock) -> None:
    with pytest.raises(LookupError, match="job_unknown"):
        database.run_write(lambda s: transition(s, "job_unknown", JobState.RUNNING, "t", clock()))


def test_the_event_is_undone_with_the_state(database: Database, factory: Factory, clock: SettableClock) -> None:
    job = factory.job(JobState.PROVISIONING)

    def change(session: Any) -> None:
        transition(session, job.id, JobState.RUNNING, "t", clock())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        database.run_write(change)
    assert job_of(database, job.id).state == "provisioning"
    assert events_of(database, job.id) == []


class AnyTransitions(RuleBasedStateMachine):
    """Random requests, with ids that repeat, against a plain model of what a job may do."""

    def __init__(self, database: Database, factory: Factory, clock: SettableClock) -> None:
        super().__init__()
        self.database, self.factory, self.clock = database, factory, clock

    @initialize()
    def create(self) -> None:
        self.job = self.factory.job()
        self.state = JobState.REQUESTED
        self.applied: list[tuple[str, JobState]] = []

    @rule(wanted=st.sampled_from(list(JobState)), number=st.integers(0, 4))
    def ask(self, wanted: JobState, number: int) -> None:
        transition_id = f"{wanted}-{number}"
        self.clock.advance(1)
        outcome = self.database.run_write(
            lambda s: transition(s, self.job.id, wanted, transition_id, self.clock(), reason=Reason.INTERNAL_ERROR)
        )
        known = (transition_id, wanted) in self.applied
        expected = may_become(self.state, wanted) and not known
        assert (outcome.applied, outcome.repeated) == (expected, known)
        if expected:
            self.state = wanted
            self.applied.append((transition_id, wanted))
        assert outcome.state is self.state

    @invariant()
    def the_row_is_where_the_model_is(self) -> None:
        stored = job_of(self.database, self.job.id)
        assert stored.state == self.state
        assert (stored.terminal_at is not None) == self.state.terminal

    @invariant()
    def the_events_tell_the_whole_story_once(self) -> None:
        events = events_of(self.database, self.job.id)
        assert [(e.transition_id, e.data["to"]) for e in events] == self.applied
        told = [JobState(e.data["to"]) for e in events]
        assert [JobState(e.data["from"]) for e in events] == [JobState.REQUESTED, *told][: len(told)]
        assert [state.terminal for state in told].count(True) <= 1
        assert not any(state.terminal for state in told[:-1])


def test_any_sequence_of_requests_follows_the_machine(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    run_state_machine_as_test(
        lambda: AnyTransitions(database, factory, clock),
        settings=settings(max_examples=15, stateful_step_count=20, deadline=None),
    )
