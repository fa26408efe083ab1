"""The fake RunPod and the adapter's requests, held against what the vendor's OpenAPI document of REST v2 (2.0.0, as of
August 2026) says: the fields that each object has, and those of them that it always has."""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from providers.base import OfferQuery
from providers.fake.control import CloudControl
from providers.runpod.cpus import CPU_CLASS
from providers.runpod.pods import STATES
from tests.providers.runpod_fake.account import API_KEY
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import RTX_4090, make_runpod, make_spec


@dataclass(frozen=True)
class Described:
    always: frozenset[str]
    sometimes: frozenset[str] = frozenset()

    def check(self, shown: dict[str, Any]) -> None:
        assert self.always <= shown.keys() <= self.always | self.sometimes


def described(always: str, sometimes: str = "") -> Described:
    return Described(frozenset(always.split()), frozenset(sometimes.split()))


POD = described(
    "actions args cloud cost createdAt cudaVersion dataCenterId disk env globalNetworking id image locked mounts name"
    " ports registry runtime ssh startedAt status template",
    "cluster cpu gpu",
)
CREATE_POD = described(
    "name image",
    "args cloud cpu dataCenterIds disk env globalNetworking gpu mounts ports registry startJupyter startSsh templateId",
)
CREATE_GPU = described("id", "allowedCudaVersions count minCudaVersion")
CREATE_CPU = described("id vcpuCount")
CPU = described("id memory vcpuCount")
SSH_ENDPOINT = described("command host port username")
RUNTIME_PORT = described("", "ip private public type")
GPU_TYPE = described(
    "community id manufacturer maxCount memory name pool price secure", "availability cudaVersions dataCenters"
)
CPU_TYPE = described("group id name price ramGbPerVcpu vcpu", "availability dataCenters")
REFUSAL = described("detail status title", "errors")
STATUSES = {"PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED"}
LEVELS = {"NONE", "LOW", "MEDIUM", "HIGH"}


def test_each_status_of_the_document_has_a_meaning() -> None:
    assert STATES.keys() == STATUSES


@pytest.mark.parametrize(("accelerator", "gpus"), [(RTX_4090, 1), (CPU_CLASS, 0)])
async def test_requests_and_pods_are_as_the_document_has_them(
    runpod: RunningRunPod, control: CloudControl, accelerator: str, gpus: int
) -> None:
    provider = make_runpod(runpod, min_cuda_version="12.8")
    offers = await provider.offers(OfferQuery(accelerator, gpus))
    offer = next(offer for offer in offers if offer.available and not offer.spot and offer.vcpus != 2)
    handle = await provider.create(make_spec(ssh_public_key="ssh-ed25519 x"), offer)
    (body,) = [body for method, path, body in runpod.account.requests if (method, path) == ("POST", "/v2/pods")]
    CREATE_POD.check(body)
    assert ("gpu" in body) is not ("cpu" in body)
    (CREATE_GPU if gpus else CREATE_CPU).check(body.get("gpu") or body["cpu"])
    (pod,) = (await shown(runpod, "/pods"))["pods"]
    POD.check(pod)
    assert pod["status"] in STATUSES
    if not gpus:
        CPU.check(pod["cpu"])
    view = await provider.get(handle)
    assert view is not None
    assert view.handle.price_usd_hr == offer.price_usd_hr
    await provider.close()


async def test_a_running_pod_says_where_it_is_reached(runpod: RunningRunPod, control: CloudControl) -> None:
    provider = make_runpod(runpod)
    offer = next(o for o in await provider.offers(OfferQuery(RTX_4090, 1)) if o.available)
    await control.settings(pending_seconds=0, starting_seconds=0)
    spec = make_spec(ssh_public_key="ssh-ed25519 x")
    handle = await provider.provision(await provider.create(spec, offer), spec, _silent)
    pod = await shown(runpod, f"/pods/{handle.provider_id}")
    for way in ("direct", "proxy"):
        assert SSH_ENDPOINT.always <= pod["ssh"][way].keys()
    for port in pod["runtime"]["ports"]:
        RUNTIME_PORT.check(port)
    await provider.close()


async def _silent(_line: str) -> None:
    """Nobody follows this boot."""


async def test_the_catalog_is_as_the_document_has_it(runpod: RunningRunPod) -> None:
    gpus = await shown(runpod, "/catalog/gpus", include="AVAILABILITY", product="POD", count="1", cloud="SECURE")
    cpus = await shown(runpod, "/catalog/cpus", include="AVAILABILITY", product="POD", vcpuCount="4")
    for kind, rows in ((GPU_TYPE, gpus["gpus"]), (CPU_TYPE, cpus["cpus"])):
        for row in rows:
            kind.check(row)
            assert {row["availability"], *(place["availability"] for place in row.get("dataCenters", ()))} <= LEVELS


async def test_a_refusal_is_as_the_document_has_it(runpod: RunningRunPod) -> None:
    REFUSAL.check(await shown(runpod, "/pods/unknown"))


async def shown(runpod: RunningRunPod, path: str, **parameters: str) -> dict[str, Any]:
    """What the fake answers."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {API_KEY}"}) as client:
        answer: dict[str, Any] = (await client.get(runpod.endpoints.rest + path, params=parameters)).json()
        return answer
