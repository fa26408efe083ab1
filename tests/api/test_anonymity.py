"""An organization that is not told of providers reads all but their names; cluster admins read those too."""

from typing import Any

import httpx
import pytest

from api.compute.anonymity import Veil
from domain.roles import Role
from domain.states import EventType, InstanceState, JobState
from store.tables import Instance, Job, Organization
from store.transitions import record
from tests.api.conftest import JOB, Api
from tests.api.market import Market
from tests.support.clock import SettableClock
from tests.support.factory import Factory

NAMES = ("vastai", "gcp", "m:1234", "machine-77", "g2-standard")


@pytest.fixture
def job(api: Api, factory: Factory, clock: SettableClock) -> Job:
    """Failed after an attempt, with every place filled in which a provider could be named."""
    market = Market(api)
    market.polled("gcp", market.offer("gcp", "g2-standard"))
    refusals = {"providers": [{"provider": "gcp", "reason": "has none free now"}], "exit_code": 3}
    made = factory.job(
        JobState.FAILED, project=factory.project(factory.default_organization()), terminal_at=clock(),
        reason_code="capacity_unavailable", reason_details=refusals,
        reason_message="no capacity: gcp: has none free now; vastai: m:1234 is gone",
    )  # fmt: skip
    offer = market.offer("vastai", "x", provider_sku="m:1234")
    instance: Instance = factory.instance(
        made, InstanceState.FAILED, provider="vastai", offer=offer.model_dump(mode="json"), allocated_at=clock(),
        handle={"provider_id": "machine-77", "resource_type": "pod", "host": "203.0.113.7"},
        reason_code="instance_lost", reason_message="VASTAI lost machine-77", confirmed_absent_at=clock(),
    )  # fmt: skip
    data = {"instance_id": instance.id, "provider": "vastai", "provider_id": "machine-77", "sku": "m:1234",
            "message": "vastai says: machine-77 is gone"}  # fmt: skip
    api.write(lambda s: record(s, made.id, EventType.OFFER_REJECTED, "r", clock(), data))
    lines = ["allocated m:1234 from vastai at 1 USD/h", "machine-77 is starting"]
    api.write(lambda s: api.services.logs.append_system(s, made.id, lines, clock()))
    return made


def read(client: httpx.Client, job: Job) -> dict[str, str]:
    paths = ("/jobs", f"/jobs/{job.id}", *(f"/jobs/{job.id}/{part}" for part in ("instances", "events", "logs")))
    answers = {path: client.get(path) for path in paths}
    answers["terminate"] = client.post(f"/jobs/{job.id}/terminate")
    assert {answer.status_code for answer in answers.values()} == {200}
    return {path: answer.text for path, answer in answers.items()}


@pytest.fixture
def hidden(api: Api, factory: Factory) -> None:
    organization = factory.default_organization()

    def hide(session: Any) -> None:
        session.get_one(Organization, organization.id).provider_anonymity = True

    api.write(hide)


def test_without_anonymity_all_of_it_is_told(api: Api, job: Job) -> None:
    text = "".join(read(api.client, job).values())
    assert all(name in text for name in NAMES if name != "g2-standard")


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("role", [Role.MEMBER, Role.ORG_ADMIN])
def test_no_answer_names_a_provider(api: Api, factory: Factory, job: Job, role: Role) -> None:
    # A cluster admin's list, whose finished jobs are kept, must not be what others are shown afterwards.
    with api.with_token(factory.key(role=Role.CLUSTER_ADMIN).token) as admin:
        assert "vastai" in "".join(read(admin, job).values())
    with api.with_token(factory.key(role=role).token) as client:
        answers = read(client, job)
    for path, text in answers.items():
        found = [name for name in NAMES if name in text.lower()]
        assert found == [], (path, text)


@pytest.mark.usefixtures("hidden")
def test_what_is_left_stays_readable(api: Api, job: Job) -> None:
    shown = api.get(f"/jobs/{job.id}").json()
    assert "provider" not in shown
    assert shown["reason"] == {
        "code": "capacity_unavailable",
        "message": "no capacity: a provider: has none free now; a provider: an offer is gone",
        "details": {"exit_code": 3},
    }
    [instance] = api.get(f"/jobs/{job.id}/instances").json()["data"]
    assert (instance["provider_id"], instance["provider_resource_type"]) == ("", "instance")
    assert instance["host"] == "203.0.113.7"
    assert instance["reason"]["message"] == "a provider lost its machine"
    [event] = api.get(f"/jobs/{job.id}/events").json()["data"]
    assert set(event["data"]) == {"instance_id", "message"}
    lines = [line["message"] for line in api.get(f"/jobs/{job.id}/logs").json()["data"]]
    assert lines == ["allocated an offer from a provider at 1 USD/h", "its machine is starting"]


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("provider", ["gcp", "nowhere"])
def test_nobody_finds_out_by_choosing_which_providers_there_are(api: Api, factory: Factory, provider: str) -> None:
    """One that is connected is refused as one that is not, by creates and by quotes."""
    market = Market(api)
    market.polled("gcp", market.offer("gcp", "g2-standard"))
    wanted = {**JOB, "placement": {"providers": [provider]}}
    quote = {
        "resource_type": "job",
        "compute": JOB["compute"],
        "container": {"image": "app"},
        "placement": wanted["placement"],
    }
    with api.with_token(factory.key(role=Role.ORG_ADMIN).token) as client:
        answers = [
            client.post("/jobs", json=wanted, headers={"Idempotency-Key": "k"}),
            client.post("/catalog/quotes", json=quote),
        ]
        assert client.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"}).status_code == 201
    assert [answer.status_code for answer in answers] == [422, 422]
    assert {answer.json()["error"]["details"]["field"] for answer in answers} == {"placement.providers"}
    with api.with_token(factory.key(role=Role.CLUSTER_ADMIN).token) as admin:
        assert admin.post("/catalog/quotes", json=quote).status_code == 200


def test_the_workloads_own_lines_are_left_alone() -> None:
    line = {"source": "user", "message": "training on vastai"}
    assert Veil(True, frozenset({"vastai"})).log(line) == line
