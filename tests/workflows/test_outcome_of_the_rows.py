"""What a run does when the rows have moved on without it: it goes by them, and waits for no message."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from domain.ids import new_id
from domain.states import JobState
from settings import Settings
from store.temporal import connect
from store.vault import Vault
from workflows.compute_job import ComputeJob
from workflows.contract import (
    AllocateInput,
    Allocation,
    AllocationOutcome,
    AttemptInput,
    Claim,
    Deallocated,
    DeallocationInput,
    DrainInput,
    FailAttemptInput,
    FailureType,
    JobInput,
    Policy,
    SettleInput,
    StreamOutcome,
    StreamResult,
)
from workflows.deallocation import Deallocation

ATTEMPT = "inst-1"
POLICY = Policy(
    provisioning_timeout=30,
    contact_timeout=30,
    finalize_grace=5,
    terminate_drain=0,
    delete_accept=1,
    capacity_wait=30,
    max_attempts=2,
    retries_on_loss=1,
)


@dataclass
class Rows:
    """The activities of a job whose rows answer as they are told to; `calls` holds what the run asked of them."""

    allocations: Sequence[Allocation] = (Allocation(AllocationOutcome.ALLOCATED, ATTEMPT, "fake/offer"),)
    stopped_at_provision: bool = False
    result: StreamResult = field(default_factory=lambda: StreamResult(StreamOutcome.EXITED))
    exit_came_first: bool = False
    refused_deletions: int = 0
    calls: list[str] = field(default_factory=list)

    async def outcome(self, address: str) -> str:
        """Runs a job to its end, within 20 seconds."""
        settings = Settings(temporal_address=address, task_queue=new_id("queue"))
        client: Client = await connect(settings, Vault.parse(Vault.generate()))
        activities = [self.claim_job, self.allocate, self.provision, self.stream_logs, self.drain, self.fail_attempt,
                      self.open_attempts, self.settle, self.deallocate]  # fmt: skip
        async with Worker(
            client, task_queue=settings.task_queue, workflows=[ComputeJob, Deallocation], activities=activities
        ):
            state: str = await client.execute_workflow(
                ComputeJob.run,
                JobInput(new_id("job")),
                id=new_id("job"),
                task_queue=settings.task_queue,
                execution_timeout=timedelta(seconds=20),
            )
        return state

    @activity.defn
    async def claim_job(self, _job_id: str) -> Claim:
        return Claim(token=1, state=JobState.ALLOCATING, policy=POLICY, open_attempts=())

    @activity.defn
    async def allocate(self, _request: AllocateInput) -> Allocation:
        self.calls.append("allocate")
        return self.allocations[min(self.calls.count("allocate"), len(self.allocations)) - 1]

    @activity.defn
    async def provision(self, _request: AttemptInput) -> None:
        self.calls.append("provision")
        if self.stopped_at_provision:
            raise ApplicationError("it is being terminated", type=FailureType.STOPPED, non_retryable=True)

    @activity.defn
    async def stream_logs(self, _request: AttemptInput) -> StreamResult:
        self.calls.append("stream_logs")
        return self.result

    @activity.defn
    async def drain(self, _request: DrainInput) -> bool:
        self.calls.append("drain")
        return True

    @activity.defn
    async def fail_attempt(self, _failure: FailAttemptInput) -> str | None:
        self.calls.append("fail_attempt")
        return None if self.exit_came_first else "fake/offer"

    @activity.defn
    async def open_attempts(self, _job_id: str) -> list[str]:
        return [ATTEMPT]

    @activity.defn
    async def settle(self, ending: SettleInput) -> str:
        self.calls.append(f"settle {ending.attempt_id}")
        return "as the row says"

    @activity.defn
    async def deallocate(self, deletion: DeallocationInput) -> Deallocated:
        by = "job" if activity.info().is_local else activity.info().workflow_type
        self.calls.append(f"delete {deletion.attempt_id} by {by}" if self.on_this_machine else f"delete {ATTEMPT}")
        if self.refused_deletions:
            self.refused_deletions -= 1
            raise ApplicationError("the engine does not answer")
        return Deallocated(gone=True)

    @property
    def on_this_machine(self) -> bool:
        return self.allocations[0].on_this_machine


async def test_an_exit_that_came_before_the_loss_was_noted_is_drained_and_counts(temporal_address: str) -> None:
    rows = Rows(result=StreamResult(StreamOutcome.LOST, message="no longer there"), exit_came_first=True)

    assert await rows.outcome(temporal_address) == "as the row says"

    assert rows.calls[2:5] == ["stream_logs", "fail_attempt", "drain"]
    assert sorted(rows.calls[5:]) == [f"delete {ATTEMPT}", f"settle {ATTEMPT}"]


async def test_a_loss_is_followed_by_another_attempt(temporal_address: str) -> None:
    rows = Rows(result=StreamResult(StreamOutcome.LOST, message="no longer there"))

    assert await rows.outcome(temporal_address) == "as the row says"

    assert rows.calls.count("allocate") == 2


async def test_a_job_that_is_not_to_be_allocated_any_more_ends_without_a_signal(temporal_address: str) -> None:
    rows = Rows(allocations=[Allocation(AllocationOutcome.STOPPED)])

    assert await rows.outcome(temporal_address) == "as the row says"

    assert sorted(rows.calls) == ["allocate", f"delete {ATTEMPT}", "settle None"]


async def test_a_job_that_is_stopped_while_it_boots_ends_without_a_signal(temporal_address: str) -> None:
    rows = Rows(stopped_at_provision=True)

    assert await rows.outcome(temporal_address) == "as the row says"

    assert sorted(rows.calls) == ["allocate", f"delete {ATTEMPT}", "provision", "settle None"]


ON_THIS_MACHINE = (Allocation(AllocationOutcome.ALLOCATED, ATTEMPT, "local/offer", on_this_machine=True),)


async def test_what_ends_on_this_machine_is_deleted_without_a_workflow_for_it(temporal_address: str) -> None:
    rows = Rows(allocations=ON_THIS_MACHINE)

    assert await rows.outcome(temporal_address) == "as the row says"

    assert rows.calls[-2:] == [f"delete {ATTEMPT} by job", f"settle {ATTEMPT}"]


async def test_what_is_not_deleted_at_once_gets_its_workflow(temporal_address: str) -> None:
    rows = Rows(allocations=ON_THIS_MACHINE, refused_deletions=1)

    assert await rows.outcome(temporal_address) == "as the row says"

    assert rows.calls[4:] == [
        f"delete {ATTEMPT} by job",
        f"delete {ATTEMPT} by Deallocation",
        f"settle {ATTEMPT}",
    ]
