"""`allocate`: from a job to an instance that a provider has promised.

Order of writes: the attempt's row, then the provider's create, then the handle. Whatever dies in between, the row tells
what may exist; the next try looks it up by the attempt's id before it asks for anything new.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from sqlmodel import Session
from temporalio import activity

from activities.context import Context, fenced_job, heartbeating, log
from activities.deadlines import limit_deadline
from activities.failures import REASONS, bounded, retry_after_seconds
from activities.instances import instance_spec, refuse_unlaunchable
from domain.errors import (
    Ambiguous,
    AuthError,
    BillingBlocked,
    NoCapacity,
    PermissionDenied,
    ProviderError,
    ProviderRejected,
    RateLimited,
)
from domain.ids import AttemptId
from domain.limits import accrued, affordable
from domain.money import UsdPerHour
from domain.offers import Offer
from domain.placement import Menu, Refusal, menu, only_too_dear, reason_details
from domain.spec import JobSpec
from domain.states import JobState, Reason
from providers.base import Handle, OfferQuery, Provider
from store import attempts, budgets, slots
from store import offers as offer_cache
from store.attempts import OfferTaken
from store.budgets import BudgetSpent
from store.slots import SlotsTaken
from store.tables import ConnectionHealth, Instance, Job
from workflows.contract import AllocateInput, Allocation, AllocationOutcome, Deadline

_BLOCKS = (AuthError, PermissionDenied, BillingBlocked)
_OFFERS_SECONDS = 30.0
_LOOKUPS = 6
_SLOT_ROUND_SECONDS = 120.0
_SLOT_POLL_SECONDS = 5.0
_LIVE = {JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING}


@dataclass(frozen=True, slots=True)
class _OutOfReach:
    """What the rows exclude: refused accounts by connection, exclusive offers that other attempts have, and the offers
    that were refused to the job for good, each with the provider's message."""

    blocked: Mapping[str, ConnectionHealth]
    reserved: frozenset[str]
    refused: Mapping[str, str]


class AllocateActivities:
    """Walks the placement menu."""

    def __init__(self, context: Context) -> None:
        self._context = context

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
        out_of_reach = await self._context.db.read(
            lambda s: _OutOfReach(offer_cache.blocked(s), offer_cache.reserved(s), attempts.refused_for_good(s, job.id))
        )
        result, failures = await self._menu(job, spec, request.rejected, out_of_reach)
        if not result.offers:
            return _nothing_eligible(result, failures, request.rejected, out_of_reach.refused)
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
                        if isinstance(error, _BLOCKS):
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

    async def _menu(
        self, job: Job, spec: JobSpec, rejected: Iterable[str], out_of_reach: _OutOfReach
    ) -> tuple[Menu, list[ProviderError]]:
        """What may be tried, and what went wrong at the connections whose offers could not be read."""
        blocked = out_of_reach.blocked
        wanted = spec.placement.providers
        asked = {
            connection_id: provider
            for connection_id, provider in self._context.providers.by_connection.items()
            if not wanted or provider.name in wanted
        }
        answers = await asyncio.gather(
            *(self._offers_of(id_, provider, spec, blocked.get(id_), job.id) for id_, provider in asked.items())
        )
        offers: list[Offer] = []
        failures: list[ProviderError] = []
        unreadable: dict[str, str] = {}
        readable = {provider.name for provider in self._context.providers.by_connection.values()}
        for provider, answer in zip(asked.values(), answers, strict=True):
            if isinstance(answer, ProviderError):
                failures.append(answer)
                unreadable[provider.name] = f"its offers could not be read ({answer.kind}): {answer.message}"
            else:
                offers += answer
        readable -= unreadable.keys() - {offer.provider for offer in offers}
        capabilities = {name: can for name, can in self._context.providers.capabilities.items() if name in readable}
        chosen = menu(
            spec,
            offers,
            capabilities,
            spent=await self._spent(job, spec),
            rejected=frozenset({*rejected, *out_of_reach.refused}),
            reserved=out_of_reach.reserved,
            unreadable=unreadable,
        )
        return chosen, failures

    async def _offers_of(
        self, connection_id: str, provider: Provider, spec: JobSpec, blocked: ConnectionHealth | None, job_id: str
    ) -> list[Offer] | ProviderError:
        """The connection's offers now. Where it does not answer, those of its last good poll, as long as they count:
        a create tells soon enough whether they are true. An error when there are none."""
        if blocked is not None:
            return AuthError(f"{provider.name} refuses its account: {blocked.error}")
        query = OfferQuery(spec.compute.accelerator, spec.compute.gpu_count)
        try:
            async with asyncio.timeout(_OFFERS_SECONDS):
                return await provider.offers(query)
        except TimeoutError:
            error: ProviderError = Ambiguous(f"no answer within {_OFFERS_SECONDS:g} s")
        except ProviderError as answered:
            error = answered
        log.warning("offers_unavailable", provider=provider.name, kind=error.kind, job_id=job_id)
        if isinstance(error, _BLOCKS):
            message = bounded(error.message)
            await self._context.db.write(
                lambda s: offer_cache.block(s, connection_id, provider.name, error.kind, message)
            )
            return error
        now, valid = self._context.clock(), timedelta(seconds=self._context.settings.offers_valid_seconds)
        compute = spec.compute
        older = await self._context.db.read(
            lambda s: offer_cache.older(s, connection_id, compute.accelerator, compute.gpu_count, now, valid)
        )
        return older or error

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

        The call runs as a task of its own: when this activity is cancelled, the call's answer is still written down.
        """
        provider = self._context.providers.of(offer.connection_id)
        call = asyncio.create_task(self._create_or_adopt(job, provider, instance, offer, known))
        self._context.in_flight[instance.id] = call
        call.add_done_callback(lambda _: self._context.in_flight.pop(instance.id, None))
        handle = await asyncio.shield(call)
        if handle is None:
            return None
        return await self._judge_price(job, request, instance, offer, handle)

    async def _create_or_adopt(
        self, job: Job, provider: Provider, instance: Instance, offer: Offer, known: bool
    ) -> Handle | None:
        try:
            handle = await self._ask(job, provider, instance, offer, known)
        except ProviderError as error:
            standing = await self._record_refusal(instance, error)
            if standing is None:
                raise
            return standing
        standing = await self._record_handle(instance, offer, handle)
        if standing is None or standing.provider_id != handle.provider_id:
            await self._give_back(provider, instance, handle)
        return standing

    async def _ask(self, job: Job, provider: Provider, instance: Instance, offer: Offer, known: bool) -> Handle:
        attempt, spec = AttemptId(instance.id), await instance_spec(self._context, job, instance)
        pause = 0.5
        while True:
            if known:
                # The attempt may exist already, and listings lag: look for it several times before asking again.
                found = await self._look_up(provider, attempt)
                if found:
                    return found[0]
            try:
                async with asyncio.timeout(self._context.settings.create_timeout_seconds):
                    return await provider.create(spec, offer)
            except (Ambiguous, TimeoutError) as error:
                log.warning("create_ambiguous", attempt_id=attempt, provider=provider.name, message=bounded(str(error)))
                known = True
            except RateLimited as error:
                pause = retry_after_seconds(error, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 15)

    async def _look_up(self, provider: Provider, attempt: AttemptId) -> list[Handle]:
        for number in range(_LOOKUPS):
            try:
                found = await provider.find(attempt)
            except ProviderError as error:
                log.warning("lookup_failed", attempt_id=attempt, provider=provider.name, kind=error.kind)
                found = []
            if found:
                return found
            await asyncio.sleep(min(0.25 * 2**number, 4))
        return []

    async def _give_back(self, provider: Provider, instance: Instance, handle: Handle) -> None:
        """A machine too many. When its deletion fails, the reconciler finds that no row explains it."""
        log.warning("surplus_instance", attempt_id=instance.id, provider_id=handle.provider_id)
        try:
            await provider.terminate(handle)
        except ProviderError as error:
            log.error("surplus_not_deleted", provider_id=handle.provider_id, kind=error.kind)

    async def _record_refusal(self, instance: Instance, error: ProviderError) -> Handle | None:
        """The handle that another worker's create had for the attempt meanwhile: then it is not refused."""
        now, message = self._context.clock(), bounded(error.message)

        def refuse(session: Session) -> Handle | None:
            row = attempts.locked(session, instance.id)
            if row.handle is not None:
                return Handle.model_validate(row.handle)
            attempts.refused(session, row, error.kind, message, now)
            if isinstance(error, _BLOCKS):
                offer_cache.block(session, row.connection_id, row.provider, error.kind, message)
            note = f"{row.provider} refused {row.offer['provider_sku']} ({error.kind}): {message}"
            self._context.logs.append_system(session, row.job_id, [note], now)
            return None

        standing = await self._context.db.write(refuse)
        if standing is None:
            self._context.slots.announce()
        return standing

    async def _record_handle(self, instance: Instance, offer: Offer, handle: Handle) -> Handle | None:
        """Writes the answer down, and answers the handle that the attempt has now. That is another one when a worker
        that was taken for dead was first; None when the attempt's end was confirmed while the create was under way."""
        now = self._context.clock()
        price = offer.price_usd_hr if handle.price_usd_hr is None else handle.price_usd_hr
        source = offer.price_source if handle.price_usd_hr is None else "create answer"

        def store(session: Session) -> Handle | None:
            row = attempts.locked(session, instance.id)
            standing = None if row.handle is None else Handle.model_validate(row.handle)
            if row.confirmed_absent_at is not None or (standing and standing.provider_id != handle.provider_id):
                return standing
            attempts.allocated(session, row, handle.model_dump(mode="json"), price, source, now, handle.created_at)
            where = "" if offer.region == offer.provider else f" in {offer.region}"
            note = f"allocated {offer.provider_sku} from {offer.provider}{where} at {price} USD/h"
            self._context.logs.append_system(session, row.job_id, [note], now)
            return handle

        return await self._context.db.write(store)

    # Money --------------------------------------------------------------------------------------------------------

    async def _judge_price(
        self, job: Job, request: AllocateInput, instance: Instance, offer: Offer, handle: Handle
    ) -> Allocation:
        """The price of the create answer counts: one that breaks the limits is deleted, and the next offer tried."""
        spec = JobSpec.model_validate(job.spec)
        price = offer.price_usd_hr if handle.price_usd_hr is None else handle.price_usd_hr
        now = self._context.clock()
        spent_before = await self._spent(job, spec)
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

    async def _spent(self, job: Job, spec: JobSpec) -> Decimal:
        """What the job's attempts have cost by now (USD); 0 where no limit asks for it."""
        if spec.limits.max_cost_usd is None:
            return Decimal(0)
        now = self._context.clock()
        return await self._context.db.read(lambda session: accrued(attempts.metered(session, [job.id])[job.id], now))

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
