"""The fake cloud for provider tests: on the test's own event loop, empty at its beginning."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from domain.spec import Workload
from providers.base import ProviderContext
from providers.fake.control import CloudControl
from providers.fake.provider import FakeProvider
from providers.fake.server import RunningCloud, serve
from tests.providers.conformance import OWNER

if TYPE_CHECKING:
    from providers.aws.provider import AwsProvider
    from providers.gcp.provider import GcpProvider
    from tests.providers.aws_server import AwsServer
    from tests.providers.control_plane import ControlPlane
    from tests.providers.gcp_fake import GcpServer
    from tests.providers.ssh_fleet import RunningFleet


@pytest.fixture
async def fake_cloud() -> AsyncIterator[RunningCloud]:
    """A cloud whose agents stay silent unless a test gives them a script."""
    async with serve() as running:
        control = CloudControl(running.url)
        await control.script(never_hello=True)
        await control.close()
        yield running


@pytest.fixture
async def control(fake_cloud: RunningCloud) -> AsyncIterator[CloudControl]:
    control = CloudControl(fake_cloud.url)
    yield control
    await control.close()


@pytest.fixture
def make_fake_provider(fake_cloud: RunningCloud) -> Callable[..., FakeProvider]:
    """Providers at the fake cloud, patient with a busy machine, which look again after 10 ms."""

    def make(owner_id: str = OWNER, **options: Any) -> FakeProvider:
        options = {"timeout_seconds": 60, "look_pause_seconds": 0.01, "api_key": "canary-key-90c1", **options}
        return FakeProvider(ProviderContext("fake", owner_id, "/nonexistent", options), fake_cloud.url)

    return make


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RunningFleet]":
    """Three hosts for all tests of this process. A test that changes one gives it back as it was."""
    from tests.providers.ssh_fleet import running_fleet

    with running_fleet(tmp_path_factory.mktemp("fleet"), "gate", "one", "two") as running:
        yield running


@pytest.fixture(scope="session")
def docker_fleet(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RunningFleet]":
    """One host with a docker daemon of its own, `whale`."""
    from tests.providers.ssh_fleet import running_fleet

    with running_fleet(tmp_path_factory.mktemp("docker"), "whale", engine="docker") as running:
        yield running


@pytest.fixture
def owner() -> str:
    """The control plane of one test."""
    return f"hr-fleet-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def plane(tmp_path: Path) -> "AsyncIterator[tuple[ControlPlane, str]]":
    """A control plane whose agents run `echo`, and the path of its agent-only socket."""
    from tests.providers.control_plane import ControlPlane

    plane, path = ControlPlane(Workload(argv=("echo", "hello from the fleet"))), str(tmp_path / "agent.sock")
    async with plane.listening(path):
        yield plane, path


@pytest.fixture(scope="session")
def podman_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory for all podman tests of this process: how podman works here is found out once, in a second."""
    return tmp_path_factory.mktemp("podman")


@pytest.fixture(scope="session")
def aws_cloud() -> "Iterator[tuple[AwsServer, str]]":
    """One AWS for all tests of this process: moto takes seconds to load what it knows of EC2."""
    from tests.providers import aws_server

    with aws_server.serve() as running:
        yield running


@pytest.fixture
def aws(aws_cloud: "tuple[AwsServer, str]") -> "AwsServer":
    """It, without anything in it."""
    aws_cloud[0].clear()
    return aws_cloud[0]


@pytest.fixture
def make_aws_provider(aws: "AwsServer", aws_cloud: "tuple[AwsServer, str]") -> "Callable[..., AwsProvider]":
    from tests.providers.aws_support import aws_provider

    return partial(aws_provider, aws_cloud[1])


@pytest.fixture(scope="session")
def gcp_server() -> "Iterator[tuple[GcpServer, str]]":
    """One Google for all tests of this process."""
    from tests.providers import gcp_fake
    from tests.providers.gcp_support import key_pair

    with gcp_fake.serve(key_pair()[1]) as running:
        yield running


@pytest.fixture
def gcp(gcp_server: "tuple[GcpServer, str]") -> "GcpServer":
    """It, without anything in it."""
    gcp_server[0].clear()
    return gcp_server[0]


@pytest.fixture
def make_gcp_provider(gcp: "GcpServer", gcp_server: "tuple[GcpServer, str]") -> "Callable[..., GcpProvider]":
    from tests.providers.gcp_support import gcp_provider

    return partial(gcp_provider, gcp_server[1])
