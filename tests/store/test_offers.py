"""The offers cache: snapshots, what counts of them, and that placement sees in it what it would see live."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.offers import Capabilities, Offer
from domain.placement import menu
from domain.spec import ComputeRequest, Interconnect, JobSpec, Placement, PlacementStrategy, Port, SpotPolicy
from domain.states import JobState
from store import attempts, offers
from store.attempts import OfferTaken
from store.connection_reach import EVERYTHING
from store.db import Database
from store.offers import Snapshot
from store.tables import Instance, Job
from tests.support.clock import SettableClock
from tests.support.factory import Factory

VALID = timedelta(minutes=10)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def replaced(database: Database, found: list[Offer], now: datetime, connection: str = "c") -> int:
    return database.run_write(
        lambda s: offers.replace(s, connection, "aws", Capabilities(), Snapshot.of(found), 5, now)
    )


def test_a_snapshot_takes_the_place_of_the_older_one_and_writes_what_changed(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    first = [factory.offer(id=str(n), connection_id="c", provider="aws") for n in range(100)]
    assert replaced(database, first, clock()) == 100
    clock.advance(60)
    later = [o.model_copy(update={"observed_at": clock()}) for o in first[1:]]
    later[0] = later[0].model_copy(update={"price_usd_hr": Decimal("9")})
    assert replaced(database, later, clock()) == 2

    market = database.run_read(lambda s: offers.market(s, EVERYTHING, "cpu-general", 0, clock(), VALID))
    assert sorted(market.offers, key=lambda o: int(o.id)) == later
    assert market.observed_at == clock()
    clock.advance(60)
    assert replaced(database, later, clock()) == 0


def test_snapshots_of_connections_do_not_touch_each_other(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    for connection in ("one", "two"):
        replaced(database, [factory.offer(id="same", connection_id=connection)], clock(), connection)
    replaced(database, [], clock(), "one")
    database.run_write(lambda s: offers.forget(s, "nobody"))
    assert database.run_read(lambda s: offers.count(s, ["one", "two"], {})) == 1
    database.run_write(lambda s: offers.forget(s, "two"))
    assert database.run_read(lambda s: offers.count(s, ["one", "two"], {})) == 0


def test_offers_count_until_they_are_too_old_and_not_while_their_account_is_refused(
    database: Database, factory: Factory, clock: SettableClock
) -> None:
    replaced(database, [factory.offer(connection_id="c", provider="aws")], clock())

    def known() -> tuple[int, dict[str, str]]:
        market = database.run_read(lambda s: offers.market(s, EVERYTHING, "cpu-general", 0, clock(), VALID))
        return len(market.offers), market.unreadable

    clock.advance(VALID.total_seconds())
    database.run_write(lambda s: offers.poll_failed(s, "c", "aws", "ambiguous", "no answer", 1, clock()))
    assert known() == (1, {})
    clock.advance(0.001)
    assert known() == (0, {"aws": "has not told its offers lately (ambiguous)"})
    replaced(database, [factory.offer(connection_id="c", provider="aws")], clock())
    database.run_write(lambda s: offers.block(s, "c", "aws", "billing", "the card has expired"))
    assert known() == (0, {"aws": "refuses its account at the moment (billing)"})
    assert list(database.run_read(offers.blocked)) == ["c"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["one/a", "one/b", "two/a", "two/c"]),
        ({"accelerator": "cpu-general"}, ["one/a", "two/a", "two/c"]),
        ({"gpu_count": 1, "interconnect": "pcie"}, ["one/b"]),
        ({"region": "eu", "available": True}, ["two/a"]),
        ({"available": False}, ["two/c"]),
    ],
)
def test_pages_follow_each_other_under_any_filter(
    database: Database, factory: Factory, clock: SettableClock, filters: dict[str, Any], found: list[str]
) -> None:
    gpu = {"accelerator": "nvidia-l4-24gb", "gpu_count": 1, "interconnect": Interconnect.PCIE}
    replaced(database, [factory.offer(id="b", connection_id="one", **gpu), factory.offer(id="a", connection_id="one")],
             clock(), "one")  # fmt: skip
    later = [factory.offer(id="c", region="eu", available=False), factory.offer(id="a", region="eu")]
    replaced(database, later, clock(), "two")
    connections = ["two", "one"]
    seen: list[tuple[str, str]] = []
    while True:
        after = seen[-1] if seen else None
        page = database.run_read(
            lambda s, after=after: offers.page(s, connections, filters, after=after, limit=1)  # type: ignore[misc]
        )
        if not page:
            break
        seen += [(connection, offer["id"]) for connection, offer in page]
    assert [f"{connection}/{offer}" for connection, offer in seen] == found
    assert database.run_read(lambda s: offers.count(s, connections, filters)) == len(found)
    assert database.run_read(lambda s: offers.page(s, [], filters, after=None, limit=1)) == []


class TestExclusiveOffers:
    def _mint(self, database: Database, job: Job, offer: Offer, now: datetime) -> Any:
        def mint(session: Any) -> Any:
            return attempts.mint(session, session.get_one(Job, job.id), offer, now, slots=None, single_tenant=False)

        return database.run_write(mint)

    def test_many_jobs_at_once_get_one_machine_each(
        self, database: Database, factory: Factory, clock: SettableClock
    ) -> None:
        machines = [factory.offer(id=f"m-{n}", exclusive=True) for n in range(5)]
        jobs = [factory.job(JobState.ALLOCATING) for _ in range(20)]

        def take(job: Job) -> Instance | None:
            for machine in machines:
                minted = self._mint(database, job, machine, clock())
                if isinstance(minted, Instance):
                    return minted
                assert isinstance(minted, OfferTaken)
            return None

        with ThreadPoolExecutor(20) as threads:
            taken = [instance for instance in threads.map(take, jobs) if instance is not None]
        assert sorted(str(i.exclusive_ref) for i in taken) == [machine.ref for machine in machines]
        assert database.run_read(offers.reserved) == {machine.ref for machine in machines}

    def test_a_machine_is_free_again_once_it_is_confirmed_gone(
        self, database: Database, factory: Factory, clock: SettableClock
    ) -> None:
        machine = factory.offer(exclusive=True)
        first, second = factory.job(JobState.ALLOCATING), factory.job(JobState.ALLOCATING)
        held = self._mint(database, first, machine, clock())
        assert isinstance(self._mint(database, second, machine, clock()), OfferTaken)
        database.run_write(lambda s: attempts.refused(s, s.get_one(Instance, held.id), "no_capacity", "no", clock()))
        assert isinstance(self._mint(database, second, machine, clock()), Instance)

    def test_the_database_itself_refuses_a_second_holder(self, database: Database, factory: Factory) -> None:
        job = factory.job()
        factory.instance(job, exclusive_ref="c/m")
        with pytest.raises(Exception, match=r"(?i)unique"):
            factory.instance(job, number=2, exclusive_ref="c/m")


# A quote is what a create would get -----------------------------------------------------------------------------------

_PROVIDERS = ("aws", "runpod", "vastai", "odd")
_OFFERS = st.builds(
    lambda provider, number, **fields: Offer(
        id=f"{provider}-{number}",
        provider=provider,
        connection_id=provider,
        provider_sku=f"sku-{number}",
        memory_gb=32.5,
        observed_at=NOW,
        **fields,
    ),
    st.sampled_from(_PROVIDERS),
    st.integers(0, 10**6),
    accelerator=st.sampled_from(["nvidia-l4-24gb", "nvidia-h100-80gb"]),
    gpu_count=st.integers(1, 2),
    vcpus=st.integers(1, 64),
    ephemeral_disk_gb=st.integers(1, 100),
    interconnect=st.sampled_from([None, Interconnect.PCIE, Interconnect.NVLINK]),
    region=st.sampled_from(["eu-1", "us-1"]),
    zone=st.sampled_from([None, "eu-1a"]),
    price_usd_hr=st.decimals(0, 10, places=6, allow_nan=False),
    spot=st.booleans(),
    available=st.booleans(),
    exclusive=st.booleans(),
)
_CAPABILITIES = st.builds(
    Capabilities, http_ports=st.booleans(), ssh=st.booleans(), private_image=st.booleans(), multi_node=st.booleans()
)
_SPECS = st.builds(
    JobSpec,
    image=st.just("app"),
    compute=st.builds(
        ComputeRequest,
        accelerator=st.sampled_from(["nvidia-l4-24gb", "nvidia-h100-80gb"]),
        gpu_count=st.integers(1, 2),
        ephemeral_disk_gb=st.integers(1, 60),
        instance_count=st.sampled_from([None, 1, 2]),
        interconnect=st.sampled_from([None, Interconnect.PCIE]),
        vcpu_count=st.sampled_from([None, 8]),
    ),
    ports=st.sampled_from([(), (Port(name="w", container_port=80, protocol="http"),)]),
    ssh_public_key=st.sampled_from([None, "key"]),
    image_pull_secret=st.sampled_from([None, "sec_1"]),
    placement=st.builds(
        Placement,
        providers=st.sampled_from([(), ("aws",), ("runpod", "nowhere")]),
        strategy=st.sampled_from(list(PlacementStrategy)),
        spot=st.sampled_from(list(SpotPolicy)),
        max_price_usd_hr=st.sampled_from([None, Decimal("3.5")]),
        regions=st.sampled_from([(), ("eu-1",)]),
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    found=st.lists(_OFFERS, max_size=12, unique_by=lambda o: o.ref),
    able=st.fixed_dictionaries(dict.fromkeys(_PROVIDERS, _CAPABILITIES)),
    spec=_SPECS,
    held=st.integers(0, 3),
)
def test_the_menu_over_the_cache_is_the_menu_over_the_live_offers(
    sqlite_database: Database, found: list[Offer], able: dict[str, Capabilities], spec: JobSpec, held: int
) -> None:
    for provider in _PROVIDERS:
        own = [offer for offer in found if offer.provider == provider]
        sqlite_database.run_write(
            lambda s, p=provider, own=own: offers.replace(s, p, p, able[p], Snapshot.of(own), 1, NOW)  # type: ignore[misc]
        )
    reserved = frozenset(offer.ref for offer in found[:held])
    compute = spec.compute
    # A live list may be narrowed by the provider, as the cache's is.
    live = [o for o in found if (o.accelerator, o.gpu_count) == (compute.accelerator, compute.gpu_count)]

    market = sqlite_database.run_read(
        lambda s: offers.market(s, EVERYTHING, compute.accelerator, compute.gpu_count, NOW, VALID)
    )

    assert market.unreadable == {}
    assert menu(spec, market.offers, market.capabilities, reserved=reserved) == menu(
        spec, live, able, reserved=reserved
    )
