"""The three invariants of `cases`: they hold after every scenario, whatever it was."""

from collections import Counter

from sqlmodel import select

from domain.states import TERMINAL
from store.tables import Instance, Job, JobEvent
from tests.support.control_plane import ControlPlane

_TERMINAL = {state.value for state in TERMINAL}


async def assert_invariants(plane: ControlPlane) -> None:
    """I1, I2 and the closed ends of I3, over all jobs of the control plane."""
    jobs, instances, events = await plane.services.db.read(
        lambda s: (s.exec(select(Job)).all(), s.exec(select(Instance)).all(), s.exec(select(JobEvent)).all())
    )
    await _every_machine_is_accounted_for(plane, list(jobs), list(instances))
    _terminal_is_final(list(jobs), list(events))
    _bills_are_closed(list(instances))


async def _every_machine_is_accounted_for(plane: ControlPlane, jobs: list[Job], instances: list[Instance]) -> None:
    """I1: what the provider has is owned by one live job, or its deletion is under way."""
    if plane.cloud is None:
        return
    states = {job.id: job.state for job in jobs}
    open_attempts = {i.id: i for i in instances if i.confirmed_absent_at is None}
    for machine in await plane.cloud.instances():
        if machine["gone"]:
            continue
        attempt = open_attempts.get(machine["attempt"])
        assert attempt is not None, f"a machine that no open attempt owns: {machine}"
        live = states[attempt.job_id] not in _TERMINAL
        assert live or attempt.delete_requested_at is not None, f"a finished job's machine: {machine}"
    per_attempt = Counter(m["attempt"] for m in await plane.cloud.instances() if not m["gone"])
    assert all(count == 1 for count in per_attempt.values()), f"doubled machines: {per_attempt}"


def _terminal_is_final(jobs: list[Job], events: list[JobEvent]) -> None:
    """I2: a terminal state never changes: one terminal event per finished job, and no state event after it."""
    for job in jobs:
        changes = [e for e in sorted(events, key=lambda e: e.seq or 0) if e.job_id == job.id and "to" in e.data]
        ends = [index for index, event in enumerate(changes) if event.data["to"] in _TERMINAL]
        assert len(ends) == (1 if job.state in _TERMINAL else 0), [e.data for e in changes]
        if ends:
            assert ends[0] == len(changes) - 1, [e.data for e in changes]
            assert changes[-1].data["to"] == job.state
            assert job.terminal_at is not None


def _bills_are_closed(instances: list[Instance]) -> None:
    """I3, as far as rows show it: what was allocated and is gone has a beginning and an end of its bill, in order."""
    for instance in instances:
        if instance.allocated_at is not None and instance.confirmed_absent_at is not None:
            assert instance.confirmed_absent_at >= instance.allocated_at, instance
