"""Which offers may serve a job, in which order, and what is said about the others."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.attempts import Fault, fault_of
from domain.backends import catalog
from domain.offers import Capabilities, Offer
from domain.placement import Menu, Refusal, menu, only_too_dear, reason_details
from domain.spec import ComputeRequest, Interconnect, JobSpec, Limits, Placement, PlacementStrategy, Port, SpotPolicy
from domain.states import Reason

GPU = "nvidia-h100-80gb"


def offer(offer_id: str = "o", **fields: Any) -> Offer:
    defaults: dict[str, Any] = {
        "id": offer_id,
        "provider": "aws",
        "connection_id": "c",
        "provider_sku": "sku",
        "accelerator": GPU,
        "gpu_count": 1,
        "vcpus": 8,
        "memory_gb": 64,
        "ephemeral_disk_gb": 100,
        "price_usd_hr": Decimal("2.00"),
        "observed_at": datetime(2026, 3, 1, tzinfo=UTC),
    }
    return Offer(**(defaults | fields))


def spec(compute: dict[str, Any] | None = None, placement: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    wanted = {"accelerator": GPU, "gpu_count": 1, "ephemeral_disk_gb": 50} | (compute or {})
    return JobSpec(image="app", compute=ComputeRequest(**wanted), placement=Placement(**(placement or {})), **fields)


def ask(wanted: JobSpec, *offers: Offer, capabilities: dict[str, Capabilities] | None = None, **more: Any) -> Menu:
    return menu(wanted, offers, capabilities or {o.provider: Capabilities() for o in offers}, **more)


def ids(result: Menu) -> list[str]:
    return [o.id for o in result.offers]


class TestOrder:
    def test_capacity_optimized_goes_by_provider_and_then_by_price(self) -> None:
        offers = [
            offer("run", provider="runpod", price_usd_hr=Decimal(1)),
            offer("dear", provider="aws", price_usd_hr=Decimal(3)),
            offer("cheap", provider="aws", price_usd_hr=Decimal(2)),
            offer("mine", provider="local", price_usd_hr=Decimal(9)),
            offer("new", provider="unheard-of", price_usd_hr=Decimal("0.1")),
        ]
        assert ids(ask(spec(), *offers)) == ["mine", "cheap", "dear", "run", "new"]

    def test_lowest_cost_goes_by_price_alone(self) -> None:
        offers = [
            offer("b", provider="local", price_usd_hr=Decimal(9)),
            offer("a", provider="vastai", price_usd_hr=Decimal("0.5")),
            offer("c", provider="aws", price_usd_hr=Decimal("0.5")),
        ]
        wanted = spec(placement={"strategy": PlacementStrategy.LOWEST_COST})
        assert ids(ask(wanted, *offers)) == ["c", "a", "b"]

    @given(
        st.lists(st.tuples(st.sampled_from(["local", *catalog(), "other"]), st.integers(1, 5)), max_size=12),
        st.randoms(use_true_random=False),
        st.sampled_from(list(PlacementStrategy)),
    )
    def test_the_order_of_the_listing_does_not_matter(
        self, shapes: list[tuple[str, int]], random: Any, strategy: PlacementStrategy
    ) -> None:
        offers = [offer(f"o{n}", provider=name, price_usd_hr=Decimal(price)) for n, (name, price) in enumerate(shapes)]
        shuffled = random.sample(offers, len(offers))
        wanted = spec(placement={"strategy": strategy})
        assert ids(ask(wanted, *offers)) == ids(ask(wanted, *shuffled))


class TestProviderRefusals:
    @pytest.mark.parametrize(
        ("wanted", "lacking", "message"),
        [
            (spec(placement={"providers": ("gcp",)}), Capabilities(), "requested providers"),
            (spec(ports=(Port(name="p", container_port=80, protocol="http"),)), Capabilities(), "no http ports"),
            (spec(ports=(Port(name="p", container_port=22, protocol="tcp"),)), Capabilities(), "no tcp ports"),
            (spec(ssh_public_key="ssh-ed25519 A"), Capabilities(), "no SSH"),
            (spec(image_pull_secret="s"), Capabilities(), "no private images"),
            (spec({"instance_count": 2}), Capabilities(), "single-instance"),
            (spec({"vcpu_count": 4}), Capabilities(bundles_cpu_with_gpu=True), "takes no vcpu_count"),
        ],
    )
    def test_what_a_backend_cannot_do_is_said(self, wanted: JobSpec, lacking: Capabilities, message: str) -> None:
        result = ask(wanted, offer(), capabilities={"aws": lacking})
        assert result.offers == ()
        assert message in result.explain()

    def test_a_backend_that_can_is_not_refused(self) -> None:
        able = Capabilities(http_ports=True, tcp_ports=True, ssh=True, private_image=True, multi_node=True)
        ports = (Port(name="a", container_port=80, protocol="http"), Port(name="b", container_port=22, protocol="tcp"))
        wanted = spec({"instance_count": 2}, ports=ports, ssh_public_key="k", image_pull_secret="s")
        assert ids(ask(wanted, offer(), capabilities={"aws": able})) == ["o"]


class TestOfferRefusals:
    @pytest.mark.parametrize(
        ("wanted", "offered", "message"),
        [
            (spec(), offer(accelerator="nvidia-l4-24gb"), f"has no 1 x {GPU}, only 1 x nvidia-l4-24gb"),
            (spec({"gpu_count": 2}), offer(), f"has no 2 x {GPU}, only 1 x {GPU}"),
            (spec({"gpu_count": 0, "accelerator": "cpu-general"}), offer(), f"has no cpu-general, only 1 x {GPU}"),
            (spec({"vcpu_count": 16}), offer(), "at most 8 vCPUs, 16 wanted"),
            (spec({"ephemeral_disk_gb": 101}), offer(), "100 GB of disk, 101 wanted"),
            (spec({"interconnect": Interconnect.NVLINK}), offer(), "no nvlink interconnect"),
            (spec(), offer(spot=True), "spot was not allowed"),
            (spec(placement={"spot": SpotPolicy.ONLY}), offer(), "no spot instances"),
            (spec(placement={"max_price_usd_hr": Decimal("1.99")}), offer(), "at most 1.99 wanted"),
            (spec(placement={"regions": ("eu",)}), offer(region="us"), "not in the regions eu"),
            (spec(placement={"zones": ("eu-1",)}), offer(zone=None), "not in the zones eu-1"),
            (
                spec(limits=Limits(max_cost_usd=Decimal("0.01"))),
                offer(),
                "to 0.066667 USD at least (at 2.00 USD/h): above max_cost_usd 0.01",
            ),
            (spec(), offer(available=False), "none free now"),
        ],
    )
    def test_each_mismatch_is_named(self, wanted: JobSpec, offered: Offer, message: str) -> None:
        result = ask(wanted, offered)
        assert result.offers == ()
        assert message in result.explain()

    @pytest.mark.parametrize("spot", [SpotPolicy.ALLOW, SpotPolicy.ONLY])
    def test_spot_is_taken_where_allowed(self, spot: SpotPolicy) -> None:
        assert ids(ask(spec(placement={"spot": spot}), offer(spot=True))) == ["o"]

    def test_exactly_what_is_wanted_is_enough(self) -> None:
        wanted = spec(
            {"vcpu_count": 8, "ephemeral_disk_gb": 100},
            {"max_price_usd_hr": Decimal(3), "regions": ("local",)},
            limits=Limits(max_cost_usd=Decimal("0.10")),  # two minutes
        )
        assert ids(ask(wanted, offer(teardown_seconds=60, price_usd_hr=Decimal(3)))) == ["o"]

    def test_the_offer_that_came_closest_is_told_of(self) -> None:
        offers = [
            offer("a", accelerator="nvidia-l4-24gb"),
            offer("b", available=False),
            offer("c", ephemeral_disk_gb=1),
        ]
        assert ask(spec(), *offers).explain() == "aws: has none free now"

    def test_a_connected_backend_without_offers_is_told_of(self) -> None:
        assert menu(spec(), [], {"gcp": Capabilities()}).explain() == f"gcp: has no offers of 1 x {GPU}"
        assert menu(spec(), [], {}).explain() == "no backend is connected"

    def test_an_eligible_provider_is_not_among_the_refusals(self) -> None:
        assert ask(spec(), offer("a"), offer("b", available=False)).refusals == ()


class TestWhatIsLeft:
    def test_tried_offers_are_left_out(self) -> None:
        result = ask(spec(), offer("a"), offer("b"), rejected=frozenset({offer("a").ref}))
        assert ids(result) == ["b"]
        result = ask(spec(), offer("a"), rejected=frozenset({offer("a").ref}))
        assert result.explain() == "aws: all its eligible offers were tried"

    def test_earlier_attempts_narrow_the_limit(self) -> None:
        wanted = spec(limits=Limits(max_cost_usd=Decimal(1)))
        assert ids(ask(wanted, offer(), spent=Decimal("0.5")))
        assert only_too_dear(ask(wanted, offer(), spent=Decimal("0.99")))

    def test_a_taken_offer_that_could_be_paid_is_worth_waiting_for(self) -> None:
        wanted = spec(limits=Limits(max_cost_usd=Decimal(1)))
        result = ask(wanted, offer("dear", price_usd_hr=Decimal(500)), offer("taken", available=False))
        assert result.may_free_up
        assert not only_too_dear(result)

    def test_a_taken_offer_that_could_never_be_paid_is_not(self) -> None:
        wanted = spec(limits=Limits(max_cost_usd=Decimal(1)))
        result = ask(wanted, offer(available=False, price_usd_hr=Decimal(500)))
        assert not result.may_free_up
        assert only_too_dear(result)

    def test_an_offer_that_no_quota_allows_is_not_worth_waiting_for(self) -> None:
        why = "the quota P allows 0 vCPUs, it needs 8"
        result = ask(spec(), offer(available=False, over_quota=why))
        assert not result.may_free_up
        assert result.explain() == f"aws: {why}"
        assert ask(spec(), offer(available=False, over_quota=why), offer("taken", available=False)).may_free_up

    def test_without_a_limit_nothing_is_too_dear(self) -> None:
        assert not only_too_dear(ask(spec(), offer(accelerator="nvidia-l4-24gb")))
        assert not only_too_dear(ask(spec(), offer()))


class TestWhatIsNotKnown:
    def test_a_provider_that_cannot_be_read_is_told_of(self) -> None:
        result = menu(spec(), [], {"gcp": Capabilities()}, unreadable={"aws": "does not answer"})
        assert result.explain() == f"aws: does not answer; gcp: has no offers of 1 x {GPU}"

    def test_a_requested_provider_that_is_not_there_is_told_of(self) -> None:
        result = menu(
            spec(placement={"providers": ("oci", "aws")}), [], {"gcp": Capabilities()}, unreadable={"aws": "is down"}
        )
        assert {r.provider: r.message for r in result.refusals} == {
            "aws": "is down",
            "gcp": "is not among the requested providers (oci, aws)",
            "oci": "is not connected",
        }

    def test_only_exclusive_offers_are_reserved(self) -> None:
        machine, shape = offer("m", exclusive=True), offer("s")
        reserved = frozenset({machine.ref, shape.ref})
        result = ask(spec(), machine, shape, reserved=reserved)
        assert ids(result) == ["s"]
        result = ask(spec(), machine, reserved=reserved)
        assert result.may_free_up
        assert result.explain() == "aws: has none free now"

    def test_details_are_bounded(self) -> None:
        details = reason_details([Refusal(f"p{n}", "x" * 5_000) for n in range(500)])
        assert details is not None
        assert len(details["providers"]) == 32
        assert {len(entry["reason"]) for entry in details["providers"]} == {300}
        assert reason_details([]) is None


class TestWhoseFault:
    @pytest.mark.parametrize(
        ("reason", "rented", "fault"),
        [
            ("no_capacity", False, Fault.REJECTED),
            (Reason.MAX_COST_EXCEEDED, True, Fault.REJECTED),
            (Reason.WORKLOAD_OOM, True, Fault.USER_FAILURE),
            (Reason.IMAGE_PULL_FAILED, True, Fault.USER_FAILURE),
            (Reason.PREEMPTED, True, Fault.PREEMPTION),
            (Reason.INSTANCE_LOST, True, Fault.INFRASTRUCTURE),
            (Reason.PROVISIONING_TIMEOUT, True, Fault.INFRASTRUCTURE),
        ],
    )
    def test_each_kind_is_told_apart(self, reason: str, rented: bool, fault: Fault) -> None:
        assert fault_of(reason, rented=rented) is fault
