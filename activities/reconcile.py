"""`reconcile_connection`: what a provider has, against the rows.

Instances with our owner id that no row explains are deleted: no open attempt has them, or it has another instance, as
after two creates of which only one answer was written down. A database that may be a copy or a backup (`store.fence`)
deletes nothing: to it, whatever began since is unexplained.
"""

from datetime import timedelta

from sqlmodel import Session, col, select
from temporalio import activity

from activities.context import Context, heartbeating, log
from domain.errors import ProviderError
from domain.ids import AttemptId
from domain.states import Reason
from providers.base import InstanceView, ProviderState
from store import attempts, fence, sweeps
from store.connections import is_stored
from store.tables import Instance, OrphanSighting


class ReconcileActivities:
    """One look per connection, for all jobs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @activity.defn
    async def reconcile_connection(self, connection_id: str) -> str:
        """Deletes what no open attempt explains, once it was seen for the grace. Answers what it found."""
        async with heartbeating():
            if is_stored(connection_id) and connection_id not in self._context.providers.by_connection:
                return f"{connection_id}: not loaded here"
            provider = self._context.providers.of(connection_id)
            try:
                views = [v for v in await provider.list_owned() if v.state is not ProviderState.GONE]
            except ProviderError as error:
                log.warning("list_unreadable", connection=connection_id, kind=error.kind, message=error.message)
                now = self._context.clock()
                await self._context.db.write(lambda s: sweeps.failed(s, connection_id, provider.name, now))
                return f"{connection_id}: the list could not be read ({error.kind}): {error.message}"
            changed = await self._context.db.write(lambda session: self._take_prices(session, connection_id, views))
            orphans = await self._context.db.write(lambda session: self._due_orphans(session, connection_id, views))
            context, deleted, unsure = self._context, 0, ""
            # Not what was found once: each look is anew, and renews the value by which copies are told apart.
            if not await fence.holds(context.db, context.blobs, context.owner_id, context.clock()):
                unsure = f", {len(orphans)} orphans only reported: this database may be a copy or a backup"
                for view in orphans:
                    log.error("orphan_reported", provider=provider.name, provider_id=view.handle.provider_id)
                orphans = []
            for view in orphans:
                log.error("orphan_found", provider=provider.name, provider_id=view.handle.provider_id)
                try:
                    await provider.terminate(view.handle)
                    deleted += 1
                except ProviderError as error:
                    log.error("orphan_not_deleted", provider_id=view.handle.provider_id, kind=error.kind)
            missing = await self._context.db.read(lambda session: self._missing(session, connection_id, views))
            for attempt_id in missing:
                # Whoever follows the attempt will ask the provider itself; the operator is told here.
                log.warning("instance_missing", provider=provider.name, attempt_id=attempt_id)
            now = context.clock()
            await context.db.write(lambda s: sweeps.done(s, connection_id, provider.name, deleted, len(missing), now))
            return (
                f"{connection_id}: {len(views)} instances, {deleted} orphans deleted,"
                f" {changed} price changes, {len(missing)} missing{unsure}"
            )

    def _missing(self, session: Session, connection_id: str, views: list[InstanceView]) -> list[str]:
        """Attempts that should have an instance, for longer than a listing may lag, and are not in the list."""
        old = self._context.clock() - timedelta(seconds=self._context.settings.orphan_grace_seconds)
        query = select(Instance.id).where(
            Instance.connection_id == connection_id,
            col(Instance.allocated_at) < old,
            col(Instance.confirmed_absent_at).is_(None),
            col(Instance.delete_requested_at).is_(None),
        )
        return sorted(set(session.exec(query).all()) - {view.attempt_id for view in views})

    def _take_prices(self, session: Session, connection_id: str, views: list[InstanceView]) -> int:
        """What the provider says that an instance costs now is what it costs from now on. One that was taken back costs
        what its terms say, whatever the list says that it would cost if it ran. What a list says is up to who owns the
        account: it counts for the attempts of this connection only."""
        now, changed = self._context.clock(), 0
        stopped = {v.attempt_id for v in views if v.attempt_id and v.state is ProviderState.INTERRUPTED}
        prices = {v.attempt_id: v.price_usd_hr for v in views if v.attempt_id and v.price_usd_hr is not None}
        query = select(Instance).where(
            Instance.connection_id == connection_id,
            col(Instance.id).in_(prices.keys() | stopped),
            col(Instance.allocated_at).is_not(None),
            col(Instance.confirmed_absent_at).is_(None),
        )
        # Each change locks its job: in one order everywhere, lest two transactions wait for each other.
        for instance in session.exec(query.order_by(col(Instance.job_id))).all():
            if instance.id in stopped:
                changed += attempts.stopped(session, instance, now)
            elif instance.reason_code != Reason.PREEMPTED:
                changed += attempts.reprice(session, instance, prices[AttemptId(instance.id)], "provider list", now)
        return changed

    def _due_orphans(self, session: Session, connection_id: str, views: list[InstanceView]) -> list[InstanceView]:
        """Remembers when each unexplained instance was first seen; those seen for the grace are due."""
        now = self._context.clock()
        grace = timedelta(seconds=self._context.settings.orphan_grace_seconds)
        open_attempts = select(Instance).where(
            col(Instance.id).in_([v.attempt_id for v in views if v.attempt_id]),
            col(Instance.confirmed_absent_at).is_(None),
        )
        known = {instance.id: instance for instance in session.exec(open_attempts).all()}
        unexplained = {v.handle.provider_id: v for v in views if not _explains(known.get(v.attempt_id or ""), v)}
        sightings = {
            s.provider_id: s
            for s in session.exec(select(OrphanSighting).where(OrphanSighting.connection_id == connection_id)).all()
        }
        for provider_id, sighting in sightings.items():
            if provider_id not in unexplained:
                session.delete(sighting)
        for provider_id in unexplained.keys() - sightings.keys():
            session.add(OrphanSighting(provider_id=provider_id, connection_id=connection_id, first_seen_at=now))
        return [
            view
            for provider_id, view in unexplained.items()
            if (grace <= timedelta(0))
            or (provider_id in sightings and now - sightings[provider_id].first_seen_at >= grace)
        ]


def _explains(attempt: Instance | None, view: InstanceView) -> bool:
    """Whether the instance is the open attempt's. One without a handle may get any: its create is under way."""
    if attempt is None:
        return False
    return attempt.handle is None or attempt.handle["provider_id"] == view.handle.provider_id
