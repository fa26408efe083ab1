"""What a machine says whose boot fails: read from each cloud as it is, bounded, and without the attempt's secrets."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from activities.diagnosis import CHARACTERS, last_words
from domain.clock import utc_now
from domain.ids import AttemptId
from domain.states import JobState
from providers.base import Handle, Provider
from store.db import Database
from store.tables import Instance
from store.vault import Vault
from tests.providers import aws_support, gcp_support, runpod_support
from tests.providers.aws_server import AwsServer
from tests.providers.gcp_fake import GcpServer
from tests.providers.runpod_fake.server import serve_runpod
from tests.support.factory import Factory


@pytest.fixture
def check(sqlite_database: Database, vault: Vault) -> "Check":
    return Check(sqlite_database, vault)


class Check:
    """An attempt of a machine, whose boot prints all that it does and has."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._db, self._vault = database, vault

    async def __call__(self, provider: Provider, handle: Handle, say: Callable[[str], None]) -> None:
        factory = Factory(self._db, utc_now, self._vault)
        attempt = factory.instance(factory.job(JobState.PROVISIONING), handle=handle.model_dump(mode="json"))
        token = self._vault.bootstrap_token(AttemptId(attempt.id))
        noise = ["\x1b[31mbooting\x1b[0m"] * 500
        say("\n".join([*noise, f"+ hh_token='{token}'", "modprobe: FATAL: nvidia not found"]))
        context: Any = SimpleNamespace(db=self._db, vault=self._vault, bootstrap_token=lambda _: SecretStr(token))

        said = await last_words(context, provider, attempt)

        assert len(said) <= CHARACTERS
        assert said.endswith("+ hh_token='***'\nmodprobe: FATAL: nvidia not found")
        row = await self._db.read(lambda session: session.get_one(Instance, attempt.id))
        assert row.last_words == said


async def test_at_aws(aws: AwsServer, make_aws_provider: aws_support.MakeProvider, check: Check) -> None:
    provider = make_aws_provider()
    handle = await provider.create(aws_support.spec_for(), await aws_support.offer_for(provider))
    await check(provider, handle, lambda text: aws.consoles.update({handle.provider_id: text}))


async def test_at_gcp(gcp: GcpServer, make_gcp_provider: gcp_support.MakeProvider, check: Check) -> None:
    provider = make_gcp_provider()
    handle = await provider.create(gcp_support.spec_for(), await gcp_support.offer_for(provider))
    await check(provider, handle, lambda text: setattr(gcp.cloud, "console", text))


async def test_at_runpod(check: Check) -> None:
    async with serve_runpod() as running:
        provider = runpod_support.make_runpod(running)
        handle = await provider.create(runpod_support.make_spec(), await runpod_support.offer_of(provider))
        pod: Any = running.account.cloud.resources[handle.provider_id]
        await check(provider, handle, lambda text: pod.console.extend(text.splitlines()))
        await provider.close()
