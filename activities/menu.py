"""The menu of an allocation: what each connection offers now, less what the rows exclude, in the order of placement."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from sqlmodel import Session

from activities.context import Context, log
from activities.failures import BLOCKS, bounded
from activities.instances import may_be_reached
from domain.errors import Ambiguous, AuthError, ProviderError
from domain.limits import accrued
from domain.offers import Offer
from domain.placement import Menu, menu
from domain.spec import JobSpec
from providers.base import OfferQuery, Provider
from store import attempts
from store import offers as offer_cache
from store.connection_reach import Reach, reach_of_job
from store.tables import ConnectionHealth, Job

_OFFERS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """What the rows exclude: refused accounts by connection, exclusive offers that other attempts have, the offers that
    were refused to the job for good, each with the provider's message, and connections that it may not use."""

    blocked: Mapping[str, ConnectionHealth]
    reserved: frozenset[str]
    refused: Mapping[str, str]
    reach: Reach


def out_of_reach(session: Session, job: Job) -> OutOfReach:
    """What the rows say now."""
    refused, reach = attempts.refused_for_good(session, job.id), reach_of_job(session, job.org_id, job.project_id)
    return OutOfReach(offer_cache.blocked(session), offer_cache.reserved(session), refused, reach)


class MenuReader:
    """Asks the connections for their offers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(
        self, job: Job, spec: JobSpec, rejected: Iterable[str], out_of_reach: OutOfReach
    ) -> tuple[Menu, list[ProviderError]]:
        """What may be tried, and what went wrong at the connections whose offers could not be read."""
        blocked = out_of_reach.blocked
        wanted = spec.placement.providers
        usable = {
            connection_id: provider
            for connection_id, provider in self._context.providers.by_connection.items()
            if connection_id in out_of_reach.reach and may_be_reached(self._context, connection_id)
        }
        asked = {id_: provider for id_, provider in usable.items() if not wanted or provider.name in wanted}
        answers = await asyncio.gather(
            *(self._offers_of(id_, provider, spec, blocked.get(id_), job.id) for id_, provider in asked.items())
        )
        offers: list[Offer] = []
        failures: list[ProviderError] = []
        unreadable: dict[str, str] = {}
        readable = {provider.name for provider in usable.values()}
        for provider, answer in zip(asked.values(), answers, strict=True):
            if isinstance(answer, ProviderError):
                failures.append(answer)
                unreadable[provider.name] = f"its offers could not be read ({answer.kind}): {answer.message}"
            else:
                offers += answer
        if (out_of_reach.reach.stored or frozenset()) - self._context.providers.by_connection.keys():
            # Connected a moment ago: it may have what is wanted as soon as this process has heard of it.
            failures.append(Ambiguous("a connection is about to be loaded"))
        readable -= unreadable.keys() - {offer.provider for offer in offers}
        capabilities = {p.name: p.capabilities for p in usable.values() if p.name in readable}
        chosen = menu(
            spec,
            offers,
            capabilities,
            spent=await spent_so_far(self._context, job, spec),
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
        if isinstance(error, BLOCKS):
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


async def spent_so_far(context: Context, job: Job, spec: JobSpec) -> Decimal:
    """What the job's attempts have cost by now (USD); 0 where no limit asks for it."""
    if spec.limits.max_cost_usd is None:
        return Decimal(0)
    now = context.clock()
    return await context.db.read(lambda session: accrued(attempts.metered(session, [job.id])[job.id], now))
