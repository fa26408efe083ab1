"""`deallocate` and `confirm_absence`: gives hardware back. Gone only when observed gone; retried without end."""

import asyncio
from datetime import datetime, timedelta

from sqlmodel import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Context, heartbeating, log
from activities.failures import bounded, to_application_error
from activities.stream_logs import drained
from domain.errors import ProviderError, ProviderNotFound
from domain.ids import AttemptId
from domain.offers import Offer
from domain.states import EventType, InstanceState
from providers.base import Handle, Provider, ProviderState, TerminateState
from store import attempts
from store.tables import Instance
from store.transitions import record
from workflows.contract import Deallocated, DeallocationInput, FailureType

_ALERT_AFTER_TRIES = 5
_CANCEL_SECONDS = 10.0
_MAY_BE_A_COPY = (
    "this database may be a copy or a backup, or its file store does not answer: nothing is deleted;"
    " `headrace orphans --confirm` says that it is the one"
)


class DeallocateActivities:
    """Deletes attempts at their providers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def deallocate(self, deletion: DeallocationInput) -> Deallocated:
        """Until the provider accepted the delete call; `gone` when the absence is confirmed with it."""
        async with heartbeating():
            instance = await self._context.db.read(lambda session: attempts.peek(session, deletion.attempt_id))
            if instance.confirmed_absent_at is not None:
                return Deallocated(gone=True)
            await self._let_it_drain(instance, deletion.drain_seconds)
            await self._end_calls_in_flight(instance.id)
            instance = await self._mark_requested(instance.id)
            gone = await self._terminate_all(instance)
            await self._mark_accepted(instance.id, gone)
            return Deallocated(gone=gone)

    @activity.defn
    async def confirm_absence(self, deletion: DeallocationInput) -> None:
        """Until the provider no longer has it; asks for the deletion again while it does."""
        async with heartbeating():
            instance = await self._context.db.read(lambda session: attempts.peek(session, deletion.attempt_id))
            if instance.confirmed_absent_at is not None:
                return
            if not await self._terminate_all(instance):
                await self._alert(instance, "the provider still lists it")
                raise ApplicationError(f"{instance.id} is still there", type=FailureType.NOT_YET_GONE)
            await self._mark_accepted(instance.id, gone=True)

    async def _let_it_drain(self, instance: Instance, seconds: float) -> None:
        """A killed workload's last output is on its way: a short head start before the machine goes away, and only
        while its agent was heard of lately."""
        if not seconds or instance.hello_at is None or activity.info().attempt > 1:
            return
        last = instance.last_contact_at or instance.hello_at
        if self._context.clock() - last > timedelta(seconds=self._context.settings.contact_timeout_seconds):
            return
        await drained(self._context, instance.id, seconds)

    async def _end_calls_in_flight(self, attempt_id: str) -> None:
        call = self._context.in_flight.get(attempt_id)
        if call is not None:
            call.cancel()
            await asyncio.wait([call], timeout=_CANCEL_SECONDS)

    async def _mark_requested(self, attempt_id: str) -> Instance:
        now = self._context.clock()

        def mark(session: Session) -> Instance:
            row = attempts.locked(session, attempt_id)
            row.delete_requested_at = row.delete_requested_at or now
            row.stop_requested_at = row.stop_requested_at or now
            if row.terminal_at is None and row.exit_report is None:
                row.state = InstanceState.STOPPING
            session.add(row)
            return row

        return await self._context.db.write(mark)

    async def _terminate_all(self, instance: Instance) -> bool:
        """One round of delete calls for everything that the attempt may have made; whether all of it is gone."""
        if not await self._context.is_the_one():
            # In the database that this one was copied from, the attempt may live.
            await self._alert(instance, _MAY_BE_A_COPY)
            raise ApplicationError(f"{instance.id}: {_MAY_BE_A_COPY}", type=FailureType.MAY_BE_A_COPY)
        try:
            provider = self._context.providers.of(instance.connection_id)
            handles = await self._handles(provider, instance)
            states = [await self._terminate(provider, handle) for handle in handles]
            if any(state is not TerminateState.GONE for state in states):
                return False
            return await self._stays_gone(provider, instance, handles)
        except LookupError as error:
            await self._alert(instance, str(error))
            raise
        except ProviderError as error:
            await self._alert(instance, f"{error.kind}: {bounded(error.message)}")
            raise _retryable(error) from error

    async def _handles(self, provider: Provider, instance: Instance) -> list[Handle]:
        if instance.handle is not None:
            return [Handle.model_validate(instance.handle)]
        found = await provider.find(AttemptId(instance.id))
        if not found and not _create_is_over(
            instance, self._context.clock(), self._context.settings.create_timeout_seconds
        ):
            raise ApplicationError(
                f"{instance.id}: its create call may still be under way", type=FailureType.NOT_YET_GONE
            )
        if found:
            await self._record_found(instance.id, found[0])
        return found

    async def _record_found(self, attempt_id: str, handle: Handle) -> None:
        """An instance whose create was never answered has cost something all the same."""
        now = self._context.clock()

        def store(session: Session) -> None:
            row = attempts.locked(session, attempt_id)
            if row.handle is None and row.confirmed_absent_at is None:
                offer = Offer.model_validate(row.offer)
                price = offer.price_usd_hr if handle.price_usd_hr is None else handle.price_usd_hr
                attempts.found(
                    session, row, handle.model_dump(mode="json"), price, "found for deletion", now, handle.created_at
                )

        await self._context.db.write(store)

    async def _terminate(self, provider: Provider, handle: Handle) -> TerminateState:
        try:
            return await provider.terminate(handle)
        except ProviderNotFound:
            view = await provider.get(handle)
            return TerminateState.GONE if view is None or view.state is ProviderState.GONE else TerminateState.REQUESTED

    async def _stays_gone(self, provider: Provider, instance: Instance, handles: list[Handle]) -> bool:
        """Absence shortly after our own create is no proof: listings lag, so it is looked for once more."""
        if instance.hello_at is not None and handles:
            return True
        await asyncio.sleep(self._context.settings.absence_gap_seconds)
        return not await provider.find(AttemptId(instance.id))

    async def _mark_accepted(self, attempt_id: str, gone: bool) -> None:
        now = self._context.clock()

        def mark(session: Session) -> None:
            row = attempts.locked(session, attempt_id)
            row.delete_accepted_at = row.delete_accepted_at or now
            session.add(row)
            record(session, row.job_id, EventType.DELETE_ACCEPTED, f"delete-{row.id}", now, {"instance_id": row.id})
            if gone:
                attempts.gone(session, row, now)

        await self._context.db.write(mark)
        if gone:
            self._context.slots.announce()

    async def _alert(self, instance: Instance, why: str) -> None:
        """Once per attempt, when its deletion has been refused for a while: money is running, and a person may help."""
        if activity.info().attempt < _ALERT_AFTER_TRIES:
            return
        now, key = self._context.clock(), f"delete-retried-{instance.id}"
        data = {"instance_id": instance.id, "provider": instance.provider, "message": why, "alert": True}
        if await self._context.db.write(
            lambda session: record(session, instance.job_id, EventType.DELETE_RETRIED, key, now, data)
        ):
            log.error("deletion_unconfirmed", attempt_id=instance.id, job_id=instance.job_id, why=why)


def _create_is_over(instance: Instance, now: datetime, timeout_seconds: float) -> bool:
    return instance.create_settled_at is not None or now - instance.created_at > timedelta(seconds=timeout_seconds)


def _retryable(error: ProviderError) -> ApplicationError:
    failure = to_application_error(error)
    # Whatever the provider says to a deletion, it is asked again: only an observed absence ends it.
    return ApplicationError(failure.message, type=failure.type)
