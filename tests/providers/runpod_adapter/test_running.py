"""Where a running pod is reached, and its log."""

import asyncio
from typing import Any

import pytest

from domain.errors import (
    Ambiguous,
)
from domain.spec import Port
from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.runpod.provider import RunPodProvider
from tests.providers.conformance import no_progress
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import make_runpod, make_spec, offer_of


class TestEndpoints:
    async def test_http_goes_through_the_proxy_and_tcp_to_the_host(self, provider: RunPodProvider) -> None:
        ports = (
            Port(name="web", container_port=8080, protocol="http"),
            Port(name="metrics", container_port=9100, protocol="tcp"),
        )
        spec = make_spec(ports=ports)
        handle = await provider.create(spec, await offer_of(provider))
        ready = await provider.provision(handle, spec, no_progress)
        view = await provider.get(ready)
        assert view is not None
        assert [(e.name, e.host, e.port) for e in view.endpoints] == [
            ("web", f"{handle.provider_id}-8080.proxy.runpod.net", 443),
            ("metrics", "198.51.100.7", 40_001),
        ]

    async def test_a_key_opens_the_direct_ssh_port(self, provider: RunPodProvider) -> None:
        spec = make_spec(ssh_public_key="ssh-ed25519 AAAA me")
        ready = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        assert ready.data["ssh"] == {"host": "198.51.100.7", "port": 40_000, "user": "root"}
        view = await provider.get(ready)
        assert view is not None
        assert [(e.name, e.port) for e in view.endpoints] == [("ssh", 40_000)]

    async def test_a_found_pod_learns_the_names_of_its_ports_again(self, provider: RunPodProvider) -> None:
        spec = make_spec(ports=(Port(name="web", container_port=8080, protocol="http"),))
        await provider.create(spec, await offer_of(provider))
        (found,) = await provider.find(spec.attempt_id)
        view = await provider.get(await provider.provision(found, spec, no_progress))
        assert view is not None
        assert [e.name for e in view.endpoints] == ["web"]


class TestLogs:
    async def test_pages_follow_each_other_without_gap_or_double(
        self, provider: RunPodProvider, runpod: RunningRunPod
    ) -> None:
        """Three lines share each id, and a stream resumes with all lines of the id that it is given."""
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        instance: Any = runpod.account.cloud.resources[handle.provider_id]
        text, cursor = "", None
        for number in range(12):
            instance.console.append(f"line {number}")
            page = await provider.logs(handle, cursor)
            text, cursor = text + page.text, page.cursor
        page = await provider.logs(handle, cursor)
        assert (page.text, page.cursor) == ("", cursor)
        written = [line for _, line in runpod.account.log(instance)]
        assert text.splitlines() == written

    async def test_a_page_of_a_pod_that_never_falls_silent_ends_and_the_next_one_goes_on(
        self, runpod: RunningRunPod, control: CloudControl
    ) -> None:
        provider = make_runpod(runpod, log_page_seconds=0.5)
        spec = make_spec()
        handle = await provider.provision(await provider.create(spec, await offer_of(provider)), spec, no_progress)
        instance: Any = runpod.account.cloud.resources[handle.provider_id]

        async def chatter() -> None:
            while True:
                instance.console.append(f"line {len(instance.console)}")
                await asyncio.sleep(0.02)

        talking = asyncio.create_task(chatter())
        async with asyncio.timeout(10):
            first = await provider.logs(handle, None)
            second = await provider.logs(handle, first.cursor)
        talking.cancel()
        lines = (first.text + second.text).splitlines()
        assert lines == [line for _, line in runpod.account.log(instance)][: len(lines)]
        assert len(second.text.splitlines()) > 5
        await provider.close()

    async def test_an_event_that_is_cut_off_is_an_error(self, provider: RunPodProvider, control: CloudControl) -> None:
        handle = await provider.create(make_spec(), await offer_of(provider))
        await control.fault("logs", Answer.TRUNCATED, stage="after")
        with pytest.raises(Ambiguous):
            await provider.logs(handle, None)
