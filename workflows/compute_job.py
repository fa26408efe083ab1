"""`ComputeJob`: one job from its first allocation to its terminal state. Workflow id = job id.

Owns: the order of the phases, the limits' timers, and that every attempt gets a `Deallocation` on every way out.
Accepts: signals `terminate`, `price_changed`, `capacity_freed`, `deletion_accepted`; query `status`.
Leaks: none by itself; attempts are rows before they are machines, and whatever ends a run, the next claim, `Recover` or
`Reconcile` starts the deletion of each row that is not confirmed absent.
"""

import asyncio
import contextlib
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from domain.states import JobState, Reason
    from workflows.contract import (
        COMPUTE_JOB,
        AllocateInput,
        Allocation,
        AllocationOutcome,
        AttemptInput,
        Claim,
        Deadline,
        DrainInput,
        FailAttemptInput,
        FailureType,
        JobInput,
        JobRef,
        Resume,
        SettleInput,
        Status,
        StreamOutcome,
        StreamResult,
        TerminateSignal,
        TerminationInput,
    )
    from workflows.deletions import Deletions
    from workflows.endings import ExitCameFirst, JobFailed, RowsDecide, for_good, is_fenced

STATE_ATTRIBUTE = SearchAttributeKey.for_keyword("HeadraceState")

_HISTORY_EVENTS = 2_000
_MOST_CLAIMS = 3
_LOCAL = timedelta(seconds=5)
_FOREVER = timedelta(days=3650)
_DATABASE_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))
_PROVIDER_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
_CAPACITY_PAUSE_SECONDS = (2, 5, 10, 20, 40, 60)
_LAST_PAUSE = len(_CAPACITY_PAUSE_SECONDS) - 1


@workflow.defn(name=COMPUTE_JOB)
class ComputeJob:
    """The state of a run; all of it is derived from the history and the activities' answers."""

    def __init__(self) -> None:
        self._phase = "claiming"
        self._attempt_id: str | None = None
        self._attempts = 0
        self._losses = 0
        self._preemptions = 0
        self._stream_number = 0
        self._rejected: tuple[str, ...] = ()
        self._capacity_until: datetime | None = None
        self._deadline: Deadline | None = None
        self._on_this_machine = False
        self._deletions = Deletions()
        self._stopping: str | None = None
        self._cut_drain = False
        self._repriced = False
        self._capacity_freed = False
        self._last_failure: JobFailed | None = None
        self._life_is_over = False

    # Messages ------------------------------------------------------------------------------------------------------

    @workflow.signal
    def terminate(self, signal: TerminateSignal) -> None:
        """The row is `terminating` already; a repeat changes nothing."""
        if signal.cut_drain:
            self._cut_drain = True
        elif self._stopping is None:
            self._stopping = "termination requested"

    @workflow.signal
    def deletion_accepted(self, attempt_id: str) -> None:
        """From `Deallocation`: the provider accepted the delete call of the attempt, whose end is awaited on."""
        self._deletions.accepted.add(attempt_id)

    @workflow.signal
    def price_changed(self) -> None:
        """The rows hold a new price: the cost limit's moment is computed anew."""
        self._repriced = True

    @workflow.signal
    def capacity_freed(self) -> None:
        """A slot that the job is in line for is free."""
        self._capacity_freed = True

    @workflow.query
    def status(self) -> Status:
        """For operators: what the workflow is doing and what would end it."""
        return Status(
            phase=self._phase,
            attempt_id=self._attempt_id,
            attempts=self._attempts,
            deadline=self._deadline,
            capacity_until=self._capacity_until,
            stopping=self._stopping,
            open_deletions=self._deletions.open,
        )

    # Run -----------------------------------------------------------------------------------------------------------

    @workflow.run
    async def run(self, job: JobInput) -> str:
        self._job_id = job.job_id
        for _ in range(_MOST_CLAIMS):
            claim = await self._claim()
            if claim.state.terminal:
                # A reset run of a finished job: its outcome stands; only its machines are looked after.
                await self._delete(claim.open_attempts)
                return claim.state
            if claim.state is JobState.TERMINATING:
                self._stopping = "termination requested"
            try:
                return await self._conclude(claim, await self._live_until_stopped(claim, job.resume))
            except FailureError as error:
                # Reset to a moment after its claim, while another run claimed the job since: this run is the one that
                # lives now, so it claims the job anew and goes by the rows.
                if not is_fenced(error):
                    raise
        raise ApplicationError(f"{job.job_id} is claimed by other runs again and again", type=FailureType.FENCED)

    async def _claim(self) -> Claim:
        claim: Claim = await workflow.execute_local_activity(
            "claim_job", self._job_id, result_type=Claim, start_to_close_timeout=_LOCAL, retry_policy=_DATABASE_RETRY
        )
        self._token, self._policy = claim.token, claim.policy
        return claim

    async def _live_until_stopped(self, claim: Claim, resume: Resume | None) -> SettleInput | None:
        """Lives the job's life until it ends by itself, or until a termination or a limit ends it (None)."""
        if self._stopping:
            return None
        life = asyncio.create_task(self._live(claim, resume))
        while not life.done():
            deadline = self._deadline
            try:
                await workflow.wait_condition(
                    lambda seen=deadline: (  # type: ignore[misc]
                        life.done()
                        or self._stopping is not None
                        or self._repriced
                        or self._deadline != seen
                        or self._history_is_long()
                    ),
                    timeout=None if deadline is None else max(timedelta(0), deadline.at - workflow.now()),
                    timeout_summary=None if deadline is None else deadline.reason.value,
                )
            except TimeoutError:
                assert deadline is not None
                await self._begin_termination(deadline)
            if life.done():
                break
            if self._stopping is not None:
                await self._end(life)
                return None
            if self._repriced:
                await self._move_deadline()
            if self._history_is_long():
                await self._end(life)
                self._continue_as_new()
        return life.result()

    async def _end(self, life: "asyncio.Task[SettleInput | None]") -> None:
        """Cancels the life and waits for its end.

        A cancellation is swallowed where the activity that the life waits for ends within the same workflow task: its
        outcome counts then. So the life looks, before each further step, at whether it is over.
        """
        self._life_is_over = True
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError, ActivityError):
            await life

    def _history_is_long(self) -> bool:
        return self._phase == "following" and (
            workflow.info().get_current_history_length() > _HISTORY_EVENTS
            or workflow.info().is_continue_as_new_suggested()
        )

    def _continue_as_new(self) -> None:
        assert self._attempt_id is not None
        assert self._capacity_until is not None
        workflow.continue_as_new(
            JobInput(
                self._job_id,
                Resume(
                    attempt_id=self._attempt_id,
                    stream_number=self._stream_number,
                    attempts=self._attempts,
                    losses=self._losses,
                    preemptions=self._preemptions,
                    rejected=self._rejected,
                    capacity_until=self._capacity_until,
                    deadline=self._deadline,
                ),
            )
        )

    async def _move_deadline(self) -> None:
        self._repriced = False
        self._deadline = await workflow.execute_local_activity(
            "current_deadline",
            JobRef(self._job_id, self._token),
            result_type=Deadline | None,  # type: ignore[arg-type]
            start_to_close_timeout=_LOCAL,
            retry_policy=_DATABASE_RETRY,
        )

    async def _begin_termination(self, deadline: Deadline) -> None:
        """A limit binds: the row becomes `terminating`, unless an exit has sealed the outcome first."""
        self._deadline = None
        state = JobState(
            await workflow.execute_local_activity(
                "begin_termination",
                TerminationInput(self._job_id, self._token, deadline.reason, deadline.message),
                result_type=str,
                start_to_close_timeout=_LOCAL,
                retry_policy=_DATABASE_RETRY,
            )
        )
        if state is JobState.TERMINATING and self._stopping is None:
            self._stopping = deadline.message

    # Life ----------------------------------------------------------------------------------------------------------

    async def _live(self, claim: Claim, resume: Resume | None) -> SettleInput | None:
        """Attempts, one after the other, until one exits by itself or the job has failed. None: the row tells."""
        try:
            if resume is not None:
                self._restore(resume)
            elif claim.finalizing_attempt is not None:
                return await self._finalize(claim.finalizing_attempt, drained=False)
            else:
                self._capacity_until = workflow.now() + timedelta(seconds=self._policy.capacity_wait)
            while True:
                if resume is None:
                    await self._allocate()
                    if not await self._provision():
                        continue
                resume = None
                result = await self._follow()
                assert self._attempt_id is not None
                if result.outcome is StreamOutcome.EXITED:
                    return await self._finalize(self._attempt_id, result.drained)
                await self._lose_attempt(result)
        except ExitCameFirst:
            assert self._attempt_id is not None
            return await self._finalize(self._attempt_id, drained=False)
        except JobFailed as failure:
            return SettleInput(
                self._job_id, self._token, reason=failure.reason, message=failure.message, details=failure.details
            )
        except RowsDecide:
            return None

    def _go_on(self) -> None:
        """Before each step that the world would notice.

        Raises:
            CancelledError: the life was ended meanwhile.
        """
        if self._life_is_over:
            raise asyncio.CancelledError

    def _restore(self, resume: Resume) -> None:
        self._attempt_id, self._attempts = resume.attempt_id, resume.attempts
        self._losses, self._preemptions = resume.losses, resume.preemptions
        self._stream_number, self._rejected = resume.stream_number, resume.rejected
        self._capacity_until, self._deadline = resume.capacity_until, resume.deadline

    async def _allocate(self) -> None:
        """Walks the menu in rounds until an instance is allocated or `capacity_wait` ends."""
        self._enter("allocating", "looking for an offer")
        round_number = 0
        while True:
            self._capacity_freed = False
            allocation = await self._allocate_once()
            if allocation.outcome is AllocationOutcome.ALLOCATED:
                self._attempt_id = allocation.attempt_id
                self._attempts += 1
                self._deadline = allocation.deadline
                self._on_this_machine = allocation.on_this_machine
                return
            if allocation.outcome is AllocationOutcome.TOO_DEAR:
                assert allocation.attempt_id is not None
                assert allocation.offer_ref is not None
                self._rejected += (allocation.offer_ref,)
                self._last_failure = JobFailed(Reason.MAX_COST_EXCEEDED, allocation.message or "too dear")
                await self._delete((allocation.attempt_id,))
                continue
            if allocation.outcome is AllocationOutcome.STOPPED:
                raise RowsDecide
            assert self._capacity_until is not None
            out_of_time = workflow.now() >= self._capacity_until
            if allocation.outcome is AllocationOutcome.IMPOSSIBLE and self._last_failure is not None:
                # Every offer was tried: the job fails for what went wrong on the last one.
                raise self._last_failure
            if allocation.outcome is AllocationOutcome.IMPOSSIBLE or out_of_time:
                raise JobFailed(
                    allocation.reason or Reason.CAPACITY_UNAVAILABLE,
                    allocation.message or "no capacity was found",
                    allocation.details,
                )
            # In line for a slot it is told of one; elsewhere, capacity that comes back is found by asking only.
            pause = _CAPACITY_PAUSE_SECONDS[-1 if allocation.in_line else min(round_number, _LAST_PAUSE)]
            round_number += 1
            remaining = (self._capacity_until - workflow.now()).total_seconds()
            await self._pause(min(pause * (0.75 + 0.5 * workflow.random().random()), remaining))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._capacity_freed, timeout=seconds)

    async def _allocate_once(self) -> Allocation:
        self._go_on()
        try:
            result: Allocation = await workflow.execute_activity(
                "allocate",
                AllocateInput(self._job_id, self._token, self._rejected, self._capacity_until),
                result_type=Allocation,
                start_to_close_timeout=timedelta(hours=1),
                heartbeat_timeout=timedelta(seconds=self._policy.activity_timeout),
                retry_policy=_PROVIDER_RETRY,
            )
        except ActivityError as error:
            raise for_good(error) or error from None
        return result

    async def _provision(self) -> bool:
        """Whether the attempt's workload has started. False: the attempt failed, and another one may be tried."""
        self._go_on()
        assert self._attempt_id is not None
        attempt = self._attempt_id
        self._enter("provisioning", f"booting {attempt}")
        timeout = timedelta(seconds=self._policy.provisioning_timeout)
        try:
            await workflow.execute_activity(
                "provision",
                AttemptInput(self._job_id, self._token, attempt),
                schedule_to_close_timeout=timeout,
                heartbeat_timeout=timedelta(seconds=self._policy.activity_timeout),
                retry_policy=_PROVIDER_RETRY,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            await self._provisioning_failed(attempt, error)
            return False
        workflow.upsert_search_attributes([STATE_ATTRIBUTE.value_set(JobState.RUNNING.value)])
        return True

    async def _provisioning_failed(self, attempt: str, error: ActivityError) -> None:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        message = cause.message if isinstance(cause, ApplicationError) else str(cause)
        if is_fenced(error):
            raise error
        if kind == FailureType.STOPPED:
            raise RowsDecide
        failure = for_good(error)
        if failure is not None:
            raise failure
        if kind == FailureType.INSTANCE_GONE:
            await self._fail_attempt(Reason.INSTANCE_LOST, message)
        elif kind == FailureType.LAUNCH_TIMEOUT:
            await self._fail_attempt(Reason.PROVISIONING_TIMEOUT, message)
        else:
            seconds = self._policy.provisioning_timeout
            await self._fail_attempt(
                Reason.PROVISIONING_TIMEOUT, f"the workload did not start within {seconds:g} s: {message}"
            )

    async def _follow(self) -> StreamResult:
        """Until the exit report, or until the provider says that the instance is gone. Lost contact is the activity's
        to judge: it is retried by Temporal, so that the history does not grow with the runtime."""
        self._go_on()
        self._enter("following", f"running on {self._attempt_id}")
        self._stream_number += 1
        assert self._attempt_id is not None
        result: StreamResult = await workflow.execute_activity(
            "stream_logs",
            AttemptInput(self._job_id, self._token, self._attempt_id),
            activity_id=f"stream-{self._attempt_id}-{self._stream_number}",
            result_type=StreamResult,
            start_to_close_timeout=_FOREVER,
            heartbeat_timeout=timedelta(seconds=self._policy.contact_timeout),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=15)),
        )
        return result

    async def _lose_attempt(self, result: StreamResult) -> None:
        """Preempted and lost attempts are counted apart, and neither counts as one that failed to boot."""
        preempted = result.outcome is StreamOutcome.PREEMPTED
        if result.exited and not result.drained:
            assert self._attempt_id is not None
            await self._drain(self._attempt_id)
        reason = Reason.PREEMPTED if preempted else Reason.INSTANCE_LOST
        if (self._preemptions if preempted else self._losses) >= self._policy.retries_on_loss:
            raise JobFailed(reason, result.message)
        if preempted:
            self._preemptions += 1
        else:
            self._losses += 1
        await self._fail_attempt(reason, result.message, counts=False)
        self._capacity_until = workflow.now() + timedelta(seconds=self._policy.capacity_wait)

    async def _fail_attempt(self, reason: Reason, message: str, *, counts: bool = True) -> None:
        """Gives up the current attempt and its hardware; the job goes on with the next offer, or fails.

        Raises:
            ExitCameFirst: the attempt is not given up.
        """
        self._go_on()
        assert self._attempt_id is not None
        failed_to_boot = self._attempts - self._losses - self._preemptions
        exhausted = counts and failed_to_boot >= self._policy.max_attempts
        offer_ref = await workflow.execute_local_activity(
            "fail_attempt",
            FailAttemptInput(self._job_id, self._token, self._attempt_id, reason, message, retry=not exhausted),
            result_type=str | None,  # type: ignore[arg-type]
            start_to_close_timeout=_LOCAL,
            retry_policy=_DATABASE_RETRY,
        )
        if offer_ref is None:
            raise ExitCameFirst
        self._last_failure = JobFailed(reason, message)
        if exhausted:
            raise self._last_failure
        if counts:
            self._rejected += (offer_ref,)
        # The limits keep their moment until the next allocation recomputes it: the old attempt's spend still counts.
        await self._delete((self._attempt_id,))

    async def _finalize(self, attempt: str, drained: bool) -> SettleInput:
        """The exit sealed the outcome: wait for the last bytes of the log, within a grace that a terminate cuts."""
        self._go_on()
        self._enter("finalizing", "storing the last of the log")
        self._deadline = None
        if not drained and not self._cut_drain:
            await self._drain(attempt)
        return SettleInput(self._job_id, self._token, attempt_id=attempt)

    async def _drain(self, attempt: str) -> None:
        drain = workflow.start_activity(
            "drain",
            DrainInput(attempt, self._policy.finalize_grace),
            start_to_close_timeout=timedelta(seconds=self._policy.finalize_grace + 30),
            heartbeat_timeout=timedelta(seconds=self._policy.activity_timeout),
            retry_policy=_DATABASE_RETRY,
        )
        await workflow.wait_condition(lambda: drain.done() or self._cut_drain)
        if not drain.done():
            drain.cancel()

    # End -----------------------------------------------------------------------------------------------------------

    async def _conclude(self, claim: Claim, ending: SettleInput | None) -> str:
        """Deletes what is open, then makes the job terminal once each first delete call was accepted, or soon after."""
        killed = ending is None
        self._enter("terminating" if killed else "deallocating", self._stopping or "giving the hardware back")
        ending = ending or SettleInput(self._job_id, self._token, message="its attempt had been given up already")
        drain = self._policy.terminate_drain if killed else 0.0
        open_attempts = await self._open_attempts(claim)
        if self._on_this_machine and not killed:
            await self._deletions.try_at_once(self._job_id, open_attempts, self._policy)
        await self._delete(open_attempts, drain)
        try:
            await workflow.wait_condition(
                lambda: self._deletions.accepted.issuperset(open_attempts),
                timeout=timedelta(seconds=self._policy.delete_accept + drain),
                timeout_summary="first delete call",
            )
        except TimeoutError:
            workflow.logger.warning("deletion not accepted yet", extra={"job_id": self._job_id})
        state: str = await workflow.execute_local_activity(
            "settle", ending, result_type=str, start_to_close_timeout=_LOCAL, retry_policy=_DATABASE_RETRY
        )
        self._enter(state, self._stopping or "")
        workflow.upsert_search_attributes([STATE_ATTRIBUTE.value_set(state)])
        await workflow.wait_condition(workflow.all_handlers_finished)
        return state

    async def _open_attempts(self, claim: Claim) -> tuple[str, ...]:
        """What must be deleted. In the common case the run knows its attempts; where a create may still be under way
        (a cancelled allocation), or the run took over from another, the rows tell."""
        if self._attempts == 1 and not self._deletions.started and self._attempt_id is not None:
            return tuple(sorted({*claim.open_attempts, self._attempt_id}))
        return tuple(
            await workflow.execute_local_activity(
                "open_attempts",
                self._job_id,
                result_type=list[str],
                start_to_close_timeout=_LOCAL,
                retry_policy=_DATABASE_RETRY,
            )
        )

    async def _delete(self, attempts: tuple[str, ...], drain_seconds: float = 0) -> None:
        await self._deletions.start(self._job_id, attempts, self._policy, drain_seconds)

    def _enter(self, phase: str, details: str) -> None:
        self._phase = phase
        lines = [f"**{phase}** {details}".rstrip()]
        if self._deadline is not None:
            lines.append(f"{self._deadline.reason.value} at {self._deadline.at.isoformat()}")
        workflow.set_current_details("\n\n".join(lines))
