"""Case 7: an exit report and a terminate at the same moment. One of them decides, the other is an event only."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlmodel import Session, col, select

from domain.outcome import ExitReport
from domain.states import EventType, JobState, Reason
from store import inbox
from store.db import Database
from store.lifecycle import agent_exit, request_termination
from store.tables import InboxRow, Instance, Job, JobEvent
from store.transitions import transition
from tests.support.clock import SettableClock
from tests.support.factory import Factory

ROUNDS = 200


class Race:
    """A running job, its end by an exit and by a terminate, and what must hold after both."""

    def __init__(self, database: Database, factory: Factory, clock: SettableClock) -> None:
        self._database, self._clock = database, clock
        self.job_id = factory.job(JobState.RUNNING).id
        self.attempt_id = factory.instance(self._job(), started_at=clock()).id

    def exit(self, status: int = 0) -> None:
        def report(session: Session) -> None:
            instance = session.get_one(Instance, self.attempt_id)
            agent_exit(session, instance, ExitReport(status=status), self._clock())

        self._database.run_write(report)

    def terminate(self) -> None:
        self._database.run_write(lambda s: request_termination(s, self.job_id, self._clock()))

    def settle(self) -> None:
        """What the workflow does in the end, by the row's state; twice, as a retried activity would."""

        def end(session: Session) -> None:
            state = JobState(session.get_one(Job, self.job_id).state)
            wanted = JobState.TERMINATED if state is JobState.TERMINATING else JobState.SUCCEEDED
            transition(session, self.job_id, wanted, "end", self._clock())

        self._database.run_write(end)
        self._database.run_write(end)

    def winner(self) -> str:
        """Checks what must hold whoever won; says who did."""
        job = self._job()
        events = self._database.run_read(
            lambda s: s.exec(select(JobEvent).where(JobEvent.job_id == self.job_id).order_by(col(JobEvent.seq))).all()
        )
        told = [event.data["to"] for event in events if "to" in event.data]
        assert [JobState(state).terminal for state in told] == [False, True]
        assert told[-1] == job.state
        exits = [e for e in events if e.type in {EventType.WORKLOAD_EXITED, EventType.LATE_EXIT}]
        assert len(exits) == 1
        inputs = self._database.run_read(
            lambda s: s.exec(select(InboxRow.kind).where(InboxRow.job_id == self.job_id)).all()
        )
        assert Counter(inputs) == {inbox.EXIT: 1, inbox.TERMINATE: 1}
        if job.state == JobState.TERMINATED:
            assert told == ["terminating", "terminated"]
            assert (job.exit_code, job.reason_code) == (None, Reason.USER_REQUESTED)
            assert "to" not in exits[0].data
            return "terminate"
        assert told == ["finalizing", "succeeded"]
        assert (job.exit_code, job.reason_code) == (0, None)
        return "exit"

    def _job(self) -> Job:
        return self._database.run_read(lambda s: s.get_one(Job, self.job_id))


@pytest.mark.parametrize("first", ["exit", "terminate"])
def test_whichever_comes_first_decides(database: Database, factory: Factory, clock: SettableClock, first: str) -> None:
    race = Race(database, factory, clock)
    order = [race.exit, race.terminate] if first == "exit" else [race.terminate, race.exit]
    for act in order:
        act()
    race.settle()
    assert race.winner() == first


def test_at_the_same_moment_exactly_one_decides(database: Database, factory: Factory, clock: SettableClock) -> None:
    """200 rounds, really at once: each also with a repeated exit report of another status, and a repeated terminate."""
    winners: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(ROUNDS):
            race = Race(database, factory, clock)
            together = threading.Barrier(4)

            def act(what: object, together: threading.Barrier = together) -> None:
                assert callable(what)
                together.wait(30)
                what()

            acts = [race.exit, race.exit, race.terminate, race.terminate]
            random.shuffle(acts)
            for done in [pool.submit(act, what) for what in acts]:
                done.result(60)
            race.settle()
            winners[race.winner()] += 1
    assert winners.total() == ROUNDS


def test_of_two_exit_reports_at_the_same_moment_one_counts(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            race = Race(database, factory, clock)
            together = threading.Barrier(2)

            def report(status: int, race: Race = race, together: threading.Barrier = together) -> None:
                together.wait(30)
                race.exit(status)

            list(pool.map(report, [3, 4]))
            job = database.run_read(lambda s, race=race: s.get_one(Job, race.job_id))
            instance = database.run_read(lambda s, race=race: s.get_one(Instance, race.attempt_id))
            assert instance.exit_report is not None
            assert job.state == JobState.FINALIZING
            assert job.exit_code == instance.exit_report["status"]
