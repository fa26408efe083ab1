"""The create call of an attempt: repeated until its answer is known, and the answer written down, whatever dies."""

import asyncio

from sqlmodel import Session

from activities.context import Context, log
from activities.failures import BLOCKS, bounded, retry_after_seconds
from activities.instances import instance_spec
from domain.errors import Ambiguous, ProviderError, RateLimited
from domain.ids import AttemptId
from domain.offers import Offer
from providers.base import Handle, Provider
from store import attempts
from store import offers as offer_cache
from store.tables import Instance, Job

_LOOKUPS = 6


class Renting:
    """Rents offers for attempts that are rows already."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rent(self, job: Job, instance: Instance, offer: Offer, *, known: bool) -> Handle | None:
        """The attempt's instance. With `known` there may be one already: it is looked up first. None: the attempt's end
        was confirmed meanwhile.

        The call runs as a task of its own: when the activity is cancelled, the call's answer is still written down.

        Raises:
            ProviderError: the provider refused, and the attempt says so.
        """
        provider = self._context.providers.of(offer.connection_id)
        call = asyncio.create_task(self._create_or_adopt(job, provider, instance, offer, known))
        self._context.in_flight[instance.id] = call
        call.add_done_callback(lambda _: self._context.in_flight.pop(instance.id, None))
        return await asyncio.shield(call)

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
            if isinstance(error, BLOCKS):
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
