"""What agents and users do to a job: each report counts once, and an attempt that ended or was given up stays so."""

from datetime import datetime
from typing import Any

import pytest
from sqlmodel import Session, col, select

from domain.outcome import ExitReport
from domain.states import TERMINAL, EventType, InstanceState, JobState, Reason
from store import inbox
from store.db import Database
from store.lifecycle import LaunchAnswer, agent_exit, agent_started, fetch_launch, hello, request_termination
from store.tables import InboxRow, Instance, Job, JobEvent
from tests.support.clock import SettableClock
from tests.support.factory import Factory

HANDLE = {"provider_id": "p"}
SUCCESS, FAILURE = ExitReport(status=0), ExitReport(status=3)


class World:
    """One job with one attempt, and what can happen to them, each in a transaction of its own."""

    def __init__(self, database: Database, factory: Factory, clock: SettableClock) -> None:
        self._database, self._factory, self._clock = database, factory, clock

    def begin(self, state: JobState = JobState.PROVISIONING, **instance: Any) -> "World":
        self.job_id = self._factory.job(state).id
        columns = {"handle": HANDLE} | instance
        self.attempt_id = self._factory.instance(self.job, InstanceState.STARTING, **columns).id
        return self

    def next_attempt(self) -> str:
        return self._factory.instance(self.job, InstanceState.STARTING, number=2, handle=HANDLE).id

    @property
    def job(self) -> Job:
        return self._database.run_read(lambda s: s.get_one(Job, self.job_id))

    @property
    def instance(self) -> Instance:
        return self._database.run_read(lambda s: s.get_one(Instance, self.attempt_id))

    @property
    def events(self) -> list[tuple[EventType, dict[str, Any]]]:
        query = select(JobEvent).where(JobEvent.job_id == self.job_id).order_by(col(JobEvent.seq))
        return [(EventType(e.type), e.data) for e in self._database.run_read(lambda s: s.exec(query).all())]

    @property
    def event_types(self) -> list[EventType]:
        return [kind for kind, _ in self.events]

    @property
    def inputs(self) -> list[str]:
        query = select(InboxRow.kind).where(InboxRow.job_id == self.job_id).order_by(col(InboxRow.id))
        return list(self._database.run_read(lambda s: s.exec(query).all()))

    def change(self, **columns: Any) -> None:
        """Sets columns of the attempt, as the workflow's activities do."""

        def run(session: Session) -> None:
            instance = session.get_one(Instance, self.attempt_id)
            for name, value in columns.items():
                setattr(instance, name, value)
            session.add(instance)

        self._database.run_write(run)

    def hello(self) -> None:
        self._on_instance(lambda s, i, now: hello(s, i, now))

    def started(self) -> None:
        self._on_instance(lambda s, i, now: agent_started(s, i, now))

    def exited(self, report: ExitReport = SUCCESS) -> None:
        self._on_instance(lambda s, i, now: agent_exit(s, i, report, now))

    def terminate(self, reason: Reason = Reason.USER_REQUESTED) -> JobState:
        return self._database.run_write(
            lambda s: request_termination(s, self.job_id, self._clock(), reason=reason, message="why")
        )

    def fetch(self, nonce: str = "n1", attempt_id: str | None = None) -> LaunchAnswer | None:
        decision = self._database.run_write(
            lambda s: fetch_launch(s, attempt_id or self.attempt_id, nonce, f"hash-{nonce}", self._clock())
        )
        return None if decision is None else decision.answer

    def _on_instance(self, act: Any) -> None:
        def run(session: Session) -> None:
            act(session, session.get_one(Instance, self.attempt_id), self._now())

        self._database.run_write(run)

    def _now(self) -> datetime:
        return self._clock()


@pytest.fixture
def world(database: Database, factory: Factory, clock: SettableClock) -> World:
    return World(database, factory, clock)


class TestHello:
    def test_the_first_one_ends_the_silence(self, world: World, clock: SettableClock) -> None:
        world.begin().hello()
        assert (world.instance.hello_at, world.instance.last_contact_at) == (clock(), clock())
        assert world.event_types == [EventType.AGENT_CONNECTED]

    def test_a_second_one_changes_nothing(self, world: World, clock: SettableClock) -> None:
        world.begin().hello()
        first = clock()
        clock.advance(5)
        world.hello()
        assert world.instance.hello_at == first
        assert world.event_types == [EventType.AGENT_CONNECTED]

    def test_one_of_a_lost_attempt_does_not_bring_it_back(self, world: World, clock: SettableClock) -> None:
        world.begin(terminal_at=clock())
        world.change(state=InstanceState.LOST)
        world.hello()
        assert world.instance.state == InstanceState.LOST


class TestLaunch:
    def test_it_is_handed_to_the_first_agent_of_a_provisioning_job(self, world: World, clock: SettableClock) -> None:
        assert world.begin().fetch() is LaunchAnswer.LAUNCH
        instance = world.instance
        assert (instance.nonce, instance.session_hash, instance.hello_at) == ("n1", "hash-n1", clock())

    def test_it_repeats_for_the_same_nonce_until_started(self, world: World) -> None:
        world.begin()
        assert [world.fetch() for _ in range(3)] == [LaunchAnswer.LAUNCH] * 3
        world.started()
        assert world.fetch() is LaunchAnswer.STOP

    def test_other_nonces_are_refused_and_alerted_once(self, world: World) -> None:
        world.begin().fetch("n1")
        assert [world.fetch(nonce) for nonce in ("n2", "n2", "n3")] == [LaunchAnswer.REFUSED] * 3
        assert (world.instance.nonce, world.instance.session_hash) == ("n1", "hash-n1")
        alerts = [data for kind, data in world.events if kind is EventType.NONCE_REFUSED]
        assert alerts == [{"instance_id": world.attempt_id, "alert": True}]
        assert world.fetch("n1") is LaunchAnswer.LAUNCH

    def test_an_agent_that_is_up_before_the_answer_to_its_create_waits(self, world: World) -> None:
        assert world.begin(JobState.ALLOCATING, handle=None).fetch() is LaunchAnswer.WAIT
        world.begin(JobState.ALLOCATING)
        assert world.fetch() is LaunchAnswer.WAIT
        world.begin(JobState.PROVISIONING, handle=None)
        assert world.fetch() is LaunchAnswer.WAIT
        assert world.fetch("another") is LaunchAnswer.REFUSED
        world.change(handle=HANDLE)
        assert world.fetch() is LaunchAnswer.LAUNCH

    @pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.ALLOCATING, JobState.PROVISIONING}))
    def test_it_is_stop_in_every_other_state_of_the_job(self, world: World, state: JobState) -> None:
        assert world.begin(state).fetch() is LaunchAnswer.STOP

    def test_it_is_stop_once_a_termination_was_asked_for(self, world: World) -> None:
        world.begin().fetch()
        world.terminate()
        assert world.fetch() is LaunchAnswer.STOP

    @pytest.mark.parametrize("column", ["stop_requested_at", "terminal_at", "delete_requested_at", "started_at"])
    def test_it_is_stop_for_an_attempt_that_was_given_up(self, world: World, clock: SettableClock, column: str) -> None:
        """Its job may be provisioning again, with another attempt."""
        world.begin(**{column: clock()})
        assert world.fetch() is LaunchAnswer.STOP
        assert world.fetch(attempt_id=world.next_attempt()) is LaunchAnswer.LAUNCH

    def test_an_unknown_attempt_gets_nothing(self, world: World) -> None:
        assert world.begin().fetch(attempt_id="inst-unknown") is None


class TestStarted:
    def test_it_makes_the_job_run(self, world: World, clock: SettableClock) -> None:
        world.begin().started()
        assert (world.job.state, world.job.started_at) == (JobState.RUNNING, clock())
        assert (world.instance.state, world.instance.started_at) == (InstanceState.RUNNING, clock())
        assert world.event_types == [EventType.WORKLOAD_STARTED]

    def test_a_repeat_changes_nothing(self, world: World, clock: SettableClock) -> None:
        world.begin().started()
        first = clock()
        clock.advance(5)
        world.started()
        assert (world.job.started_at, world.instance.started_at) == (first, first)
        assert world.event_types == [EventType.WORKLOAD_STARTED]

    def test_after_a_termination_the_job_stays_terminating(self, world: World) -> None:
        world.begin().terminate()
        world.started()
        assert world.job.state == JobState.TERMINATING
        assert world.instance.started_at is not None

    @pytest.mark.parametrize("column", ["terminal_at", "delete_requested_at"])
    def test_one_of_an_attempt_that_was_given_up_does_not_start_the_next(
        self, world: World, clock: SettableClock, column: str
    ) -> None:
        world.begin(**{column: clock()})
        world.change(state=InstanceState.LOST)
        world.next_attempt()
        world.started()
        assert (world.job.state, world.instance.state) == (JobState.PROVISIONING, InstanceState.LOST)
        assert world.event_types == []


class TestExit:
    def test_it_seals_the_outcome_and_tells_the_workflow(self, world: World, clock: SettableClock) -> None:
        world.begin(JobState.RUNNING, started_at=clock()).exited(FAILURE)
        assert (world.job.state, world.job.exit_code) == (JobState.FINALIZING, 3)
        instance = world.instance
        assert (instance.state, instance.exited_at) == (InstanceState.FAILED, clock())
        assert ExitReport.model_validate(instance.exit_report) == FAILURE
        assert world.events == [
            (
                EventType.WORKLOAD_EXITED,
                {"from": "running", "to": "finalizing", "instance_id": world.attempt_id, "exit_code": 3, "signal": 0},
            )
        ]
        assert world.inputs == [inbox.EXIT]

    def test_it_implies_the_start_whose_report_is_late(self, world: World, clock: SettableClock) -> None:
        world.begin().exited()
        assert world.job.state == JobState.FINALIZING
        assert (world.job.started_at, world.instance.started_at) == (clock(), clock())
        assert world.event_types == [EventType.WORKLOAD_STARTED, EventType.WORKLOAD_EXITED]
        world.started()
        assert world.job.state == JobState.FINALIZING
        assert len(world.events) == 2

    def test_a_repeat_is_ignored_even_with_another_status(self, world: World) -> None:
        world.begin(JobState.RUNNING).exited(FAILURE)
        world.exited(SUCCESS)
        assert ExitReport.model_validate(world.instance.exit_report) == FAILURE
        assert world.job.exit_code == 3
        assert world.event_types.count(EventType.WORKLOAD_EXITED) == 1
        assert world.inputs == [inbox.EXIT]

    def test_after_a_termination_it_is_an_event_only(self, world: World) -> None:
        world.begin(JobState.RUNNING).terminate()
        world.exited(ExitReport(status=137, signal=9))
        assert (world.job.state, world.job.exit_code) == (JobState.TERMINATING, None)
        kind, data = world.events[-1]
        assert (kind, data["killed_by_us"], data["signal"]) == (EventType.WORKLOAD_EXITED, True, 9)
        assert world.inputs == [inbox.TERMINATE, inbox.EXIT]

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    def test_after_the_end_it_is_a_late_event_only(self, world: World, state: JobState) -> None:
        world.begin(state).exited()
        assert world.job.state == state
        assert world.event_types == [EventType.LATE_EXIT]

    @pytest.mark.parametrize("state", [JobState.PROVISIONING, JobState.RUNNING])
    def test_one_of_an_attempt_that_was_given_up_does_not_end_the_next(
        self, world: World, clock: SettableClock, state: JobState
    ) -> None:
        world.begin(state, terminal_at=clock())
        world.change(state=InstanceState.LOST)
        world.next_attempt()
        world.exited()
        assert (world.job.state, world.instance.state) == (state, InstanceState.LOST)
        assert world.event_types == [EventType.LATE_EXIT]
        assert world.instance.exit_report is not None


class TestTermination:
    @pytest.mark.parametrize(
        "state", [JobState.REQUESTED, JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING]
    )
    def test_a_live_job_is_terminating_at_once_with_its_order_to_stop(
        self, world: World, clock: SettableClock, state: JobState
    ) -> None:
        assert world.begin(state).terminate() is JobState.TERMINATING
        assert (world.job.state, world.job.reason_code) == (JobState.TERMINATING, Reason.USER_REQUESTED)
        assert world.instance.stop_requested_at == clock()
        assert world.event_types == [EventType.TERMINATION_REQUESTED]
        assert world.inputs == [inbox.TERMINATE]

    def test_a_second_one_keeps_the_first_ones_reason(self, world: World, clock: SettableClock) -> None:
        world.begin(JobState.RUNNING).terminate(Reason.MAX_COST_EXCEEDED)
        stopped_at = clock()
        clock.advance(5)
        assert world.terminate() is JobState.TERMINATING
        assert world.job.reason_code == Reason.MAX_COST_EXCEEDED
        assert world.instance.stop_requested_at == stopped_at
        assert (len(world.events), world.inputs) == (1, [inbox.TERMINATE])

    def test_a_sealed_outcome_stands_and_only_the_drain_is_cut(self, world: World) -> None:
        world.begin(JobState.RUNNING).exited()
        assert world.terminate() is JobState.FINALIZING
        assert world.terminate() is JobState.FINALIZING
        assert world.job.state == JobState.FINALIZING
        assert world.job.reason_code is None
        assert world.inputs == [inbox.EXIT, inbox.TERMINATE]

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    def test_an_ended_job_is_left_alone(self, world: World, state: JobState) -> None:
        assert world.begin(state).terminate() is state
        assert (world.events, world.inputs) == ([], [])
        assert world.instance.stop_requested_at is None

    def test_attempts_that_are_gone_get_no_order(self, world: World, clock: SettableClock) -> None:
        world.begin(JobState.RUNNING, confirmed_absent_at=clock()).terminate()
        assert world.instance.stop_requested_at is None

    def test_a_lost_attempt_that_may_still_run_gets_one(self, world: World, clock: SettableClock) -> None:
        world.begin(JobState.RUNNING, terminal_at=clock()).terminate()
        assert world.instance.stop_requested_at == clock()

    async def test_agents_that_wait_for_orders_are_woken(self, world: World, database: Database) -> None:
        wakeup = database.subscribe("orders")
        world.begin(JobState.RUNNING).terminate()
        await wakeup.wait()
