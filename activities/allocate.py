"""`allocate`: from a job to an instance that a provider has promised.

Order of writes: the attempt's row, then the provider's create, then the handle. Whatever dies in between, the row tells
what may exist; the next try looks it up by the attempt's id before it asks for anything new.
"""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal

from sqlmodel import Session
from temporalio import activity

from activities.context import Context, fenced_job, heartbeating
from activities.deadlines import limit_deadline
from activities.failures import BLOCKS, REASONS, bounded
from activities.instances import refuse_unlaunchable
from activities.menu import MenuReader, out_of_reach, spent_so_far
from activities.renting import Renting
from domain.errors import (
    NoCapacity,
    ProviderError,
    ProviderRejected,
)
from domain.limits import affordable
from domain.money import UsdPerHour
from domain.offers import Offer
from domain.placement import Menu, Refusal, only_too_dear, reason_details
from domain.spec import JobSpec
from domain.states import JobState, Reason
from providers.base import Handle
from store import attempts, budgets, slots
from store.attempts import OfferTaken
from store.budgets import BudgetSpent
from store.slots import SlotsTaken
from store.tables import Instance, Job
from workflows.contract import AllocateInput, Allocation, AllocationOutcome, Deadline

_SLOT_ROUND_SECONDS = 120.0
_SLOT_POLL_SECONDS = 5.0
_LIVE = {JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING}


class AllocateActivities:
    """Walks the placement menu."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._menu, self._renting = MenuReader(context), Renting(context)

    @activity.defn
    async def allocate(self, request: AllocateInput) -> Allocation:
        """One walk down the menu. Repeatable: an attempt that is already open is finished, not doubled."""
        async with heartbeating():
            job, open_attempts = await self._context.db.read(lambda session: _rows(session, request))
            if JobState(job.state) not in _LIVE:
                return Allocation(AllocationOutcome.STOPPED)
            resumed = await self._resume(job, open_attempts, request)
            return resumed or await self._walk(job, request)

    # An attempt that an earlier try left open ---------------------------------------------------------------------

    async def _resume(self, job: Job, open_attempts: list[Instance], request: AllocateInput) -> Allocation | None:
        instance = attempts.current_of(open_attempts)
        if instance is None:
            return _rejection(open_attempts, request)
        offer = Offer.model_validate(instance.offer)
        if instance.handle is None:
            try:
                return await self._create(job, request, instance, offer, known=True)
            except ProviderError:
                return None
        if instance.hello_at is None:
            # The earlier try may have ended between writing the answer down and judging its price.
            return await self._judge_price(job, request, instance, offer, Handle.model_validate(instance.handle))
        return await self._allocation(job, instance, offer)

    # The walk -----------------------------------------------------------------------------------------------------

    async def _walk(self, job: Job, request: AllocateInput) -> Allocation:
        await refuse_unlaunchable(self._context, job)
        spec = JobSpec.model_validate(job.spec)
        excluded = await self._context.db.read(lambda session: out_of_reach(session, job))
        result, failures = await self._menu.read(job, spec, request.rejected, excluded)
        if not result.offers:
            return _nothing_eligible(result, failures, request.rejected, excluded.refused)
        return await self._walk_offers(job, request, result, wait_seconds=self._patience(request))

    def _patience(self, request: AllocateInput) -> float:
        """How long to wait for a slot here, in seconds: not beyond the job's wait for capacity."""
        if self._context.slots.full:
            return 0.0
        if request.capacity_until is None:
            return _SLOT_ROUND_SECONDS
        remaining = (request.capacity_until - self._context.clock()).total_seconds()
        return min(max(remaining, 0.0), _SLOT_ROUND_SECONDS)

    async def _walk_offers(self, job: Job, request: AllocateInput, result: Menu, *, wait_seconds: float) -> Allocation:
        """Tries each offer once; then waits for a slot at those that lacked only that, with a place in the queue."""
        until = asyncio.get_running_loop().time() + wait_seconds
        offers: Sequence[Offer] = result.offers
        last: ProviderError | None = None
        broke: BudgetSpent | None = None
        refused: dict[str, Refusal] = {}
        blocked: set[str] = set()
        for_good = not result.may_free_up
        with self._context.slots.place() as waiter:
            while True:
                remaining = until - asyncio.get_running_loop().time()
                full: list[Offer] = []
                for offer in offers:
                    if offer.connection_id in blocked:
                        continue
                    minted = await self._mint(job, request, offer, line_up=remaining <= 0)
                    if minted is None:
                        return Allocation(AllocationOutcome.STOPPED)
                    if isinstance(minted, BudgetSpent):
                        broke = minted
                        refused[offer.provider] = Refusal(offer.provider, minted.message)
                        continue
                    if isinstance(minted, SlotsTaken | OfferTaken):
                        last, for_good = NoCapacity(minted.message), False
                        refused[offer.provider] = Refusal(offer.provider, minted.message)
                        if isinstance(minted, SlotsTaken):
                            full.append(offer)
                        continue
                    try:
                        allocation = await self._create(job, request, minted, offer, known=False)
                    except ProviderError as error:
                        last, for_good = error, for_good and isinstance(error, ProviderRejected)
                        refused[offer.provider] = Refusal(offer.provider, f"{error.kind}: {error.message}")
                        if isinstance(error, BLOCKS):
                            blocked.add(offer.connection_id)
                        continue
                    if allocation is not None:
                        return allocation
                if broke is not None and last is None:
                    return Allocation(
                        AllocationOutcome.IMPOSSIBLE, reason=Reason.BUDGET_EXHAUSTED, message=broke.message
                    )
                if not full or remaining <= 0:
                    refusals = [*refused.values(), *result.refusals]
                    return _exhausted(last, refusals, in_line=bool(full), for_good=for_good and last is not None)
                offers = full
                await waiter.wait(min(remaining, _SLOT_POLL_SECONDS))

    async def _mint(
        self, job: Job, request: AllocateInput, offer: Offer, *, line_up: bool
    ) -> Instance | SlotsTaken | OfferTaken | BudgetSpent | None:
        """The attempt's row. None: stop. With `line_up`, who finds all slots taken is told of the next free one."""
        provider = self._context.providers.of(offer.connection_id)
        single_tenant = provider.capabilities.shared_host and not self._context.settings.local_multi_tenant

        drain = self._context.settings.terminate_drain_seconds

        def mint(session: Session) -> Instance | SlotsTaken | OfferTaken | BudgetSpent | None:
            row = fenced_job(session, request.job_id, request.token)
            if JobState(row.state) is not JobState.ALLOCATING:
                return None
            now = self._context.clock()
            if (spent := budgets.refusal(session, row, offer, now, drain)) is not None:
                return spent
            minted = attempts.mint(session, row, offer, now, slots=provider.slots, single_tenant=single_tenant)
            if isinstance(minted, SlotsTaken) and line_up:
                slots.line_up(session, row)
            elif isinstance(minted, Instance):
                slots.leave_line(session, row.id)
            return minted

        return await self._context.db.write(mint)

    # Create -------------------------------------------------------------------------------------------------------

    async def _create(
        self, job: Job, request: AllocateInput, instance: Instance, offer: Offer, *, known: bool
    ) -> Allocation | None:
        """Rents the offer for the attempt. None: its end was confirmed meanwhile, the next offer is tried.

        Raises:
            ProviderError: the provider refused, and the attempt says so.
        """
        handle = await self._renting.rent(job, instance, offer, known=known)
        if handle is None:
            return None
        return await self._judge_price(job, request, instance, offer, handle)

    # Money --------------------------------------------------------------------------------------------------------

    async def _judge_price(
        self, job: Job, request: AllocateInput, instance: Instance, offer: Offer, handle: Handle
    ) -> Allocation:
        """The price of the create answer counts: one that breaks the limits is deleted, and the next offer tried."""
        spec = JobSpec.model_validate(job.spec)
        price = offer.price_usd_hr if handle.price_usd_hr is None else handle.price_usd_hr
        now = self._context.clock()
        spent_before = await spent_so_far(self._context, job, spec)
        least_seconds = max(offer.pricing_model.unit_seconds, offer.terms.minimum_seconds)
        first_charge = price * least_seconds / Decimal(3600) if offer.terms.boot_charged else Decimal(0)
        ceiling = spec.placement.max_price_usd_hr
        too_dear = (ceiling is not None and price > ceiling) or not affordable(
            UsdPerHour(price),
            offer.pricing_model.unit_seconds,
            offer.teardown_seconds,
            max(Decimal(0), spent_before - first_charge),
            spec.limits.max_cost_usd,
            offer.terms.minimum_seconds,
        )
        if not too_dear and price > offer.price_usd_hr:
            drain = self._context.settings.terminate_drain_seconds
            too_dear = await self._context.db.read(lambda session: budgets.overdrawn(session, job, now, drain))
        if not too_dear:
            return await self._allocation(job, instance, offer)
        message = (
            f"the create answer's price of {price} USD/h, offered at {offer.price_usd_hr}, breaks the job's limits or"
            " its budget"
        )

        def reject(session: Session) -> None:
            fenced_job(session, request.job_id, request.token)
            row = attempts.locked(session, instance.id)
            attempts.give_up(session, row, Reason.MAX_COST_EXCEEDED, message, now, retry=True)
            attempts.offer_rejected(session, row, "price", message, now)
            self._context.logs.append_system(session, job.id, [message], now)

        await self._context.db.write(reject)
        return _too_dear(instance, offer, message)

    async def _allocation(self, job: Job, instance: Instance, offer: Offer) -> Allocation:
        return Allocation(
            AllocationOutcome.ALLOCATED,
            attempt_id=instance.id,
            offer_ref=offer.ref,
            deadline=await self._deadline(job),
            on_this_machine=self._context.providers.of(offer.connection_id).capabilities.shared_host,
        )

    async def _deadline(self, job: Job) -> Deadline | None:
        now, drain = self._context.clock(), self._context.settings.terminate_drain_seconds
        limits = JobSpec.model_validate(job.spec).limits
        if limits.max_cost_usd is None and limits.max_runtime_hours is None:
            return None

        def compute(session: Session) -> Deadline | None:
            row = session.get(Job, job.id)
            assert row is not None
            return limit_deadline(session, row, now, drain)

        return await self._context.db.read(compute)


def _rows(session: Session, request: AllocateInput) -> tuple[Job, list[Instance]]:
    """The job and its open attempts."""
    job = fenced_job(session, request.job_id, request.token, lock=False)
    return job, attempts.open_attempts(session, job.id)


def _exhausted(last: ProviderError | None, refusals: Sequence[Refusal], *, in_line: bool, for_good: bool) -> Allocation:
    """No offer was had. `for_good`: each was refused for what the request says, and would be again."""
    if for_good:
        assert last is not None
        return Allocation(
            AllocationOutcome.IMPOSSIBLE,
            reason=Reason.PROVIDER_ERROR,
            message=f"refused: {bounded(last.message)}",
            details=reason_details(refusals),
        )
    message = bounded(last.message) if last else "no offer could be had"
    reason = REASONS.get(last.kind, Reason.PROVIDER_ERROR) if last else Reason.CAPACITY_UNAVAILABLE
    return Allocation(
        AllocationOutcome.EXHAUSTED,
        reason=reason,
        message=f"no capacity: {message}",
        details=reason_details(refusals),
        in_line=in_line,
    )


def _rejection(open_attempts: list[Instance], request: AllocateInput) -> Allocation | None:
    """What an earlier try rejected for its price, if it ended before the workflow heard that it must delete it."""
    for instance in open_attempts:
        offer = Offer.model_validate(instance.offer)
        if instance.reason_code == Reason.MAX_COST_EXCEEDED and offer.ref not in request.rejected:
            return _too_dear(instance, offer)
    return None


def _too_dear(instance: Instance, offer: Offer, message: str | None = None) -> Allocation:
    message = message or instance.reason_message
    return Allocation(AllocationOutcome.TOO_DEAR, attempt_id=instance.id, offer_ref=offer.ref, message=message)


def _nothing_eligible(
    result: Menu, failures: list[ProviderError], rejected: tuple[str, ...], refused: Mapping[str, str]
) -> Allocation:
    """`rejected` are the offers that failed the job, `refused` those that the provider refused it for good."""
    details, why = reason_details(result.refusals), bounded(result.explain())
    if failures:
        # A backend that could not be asked may have what is wanted.
        last = failures[-1]
        return Allocation(
            AllocationOutcome.EXHAUSTED,
            reason=REASONS.get(last.kind, Reason.PROVIDER_ERROR),
            message=f"offers could not be read: {bounded(last.message)}",
            details=details,
        )
    if result.may_free_up:
        return Allocation(
            AllocationOutcome.EXHAUSTED,
            reason=Reason.CAPACITY_UNAVAILABLE,
            message=f"no capacity: {why}",
            details=details,
        )
    if only_too_dear(result):
        return Allocation(AllocationOutcome.IMPOSSIBLE, reason=Reason.MAX_COST_EXCEEDED, message=why, details=details)
    if refused:
        message = f"refused: {list(refused.values())[-1]}"
        return Allocation(AllocationOutcome.IMPOSSIBLE, reason=Reason.PROVIDER_ERROR, message=message, details=details)
    text = "no eligible offer is left" if rejected else "no eligible offer"
    return Allocation(
        AllocationOutcome.IMPOSSIBLE,
        reason=Reason.CAPACITY_UNAVAILABLE,
        message=f"{text}: {why}",
        details=details,
    )
