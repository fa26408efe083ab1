"""The embedded Temporal server is the real one: it starts, keeps its state, and lets go of its file."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from commands.exits import CommandError
from commands.ports import PortBook
from commands.supervisor import Child, ChildSpec
from commands.temporal_server import (
    SEARCH_ATTRIBUTES,
    DatabaseLock,
    TemporalServer,
    find_temporal,
    temporal_environment,
)


@pytest.fixture
def temporal(tmp_path: Path) -> TemporalServer:
    ports = PortBook(tmp_path / "ports")
    return TemporalServer(find_temporal(), tmp_path / "temporal.db", ports.choose(), ports.choose())


async def start(server: TemporalServer, folder: Path, lock: DatabaseLock | None = None) -> Child:
    keep = (lock.descriptor,) if lock is not None and lock.descriptor is not None else ()
    child = Child(
        ChildSpec("temporal", server.argv(), temporal_environment(), folder / "temporal.log", keep_descriptors=keep)
    )
    await child.start()
    for _ in range(400):
        if await server.is_listening():
            return child
        await asyncio.sleep(0.05)
    raise AssertionError("\n".join(child.log_tail()))


async def test_it_keeps_closed_workflows_for_thirty_days_and_knows_the_search_attributes(temporal, tmp_path):
    child = await start(temporal, tmp_path)
    try:
        assert await temporal.set_retention() is None
        client = await Client.connect(temporal.address)
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        assert described.config.workflow_execution_retention_ttl.ToTimedelta().days == 30
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
        for name in SEARCH_ATTRIBUTES:
            assert known.custom_attributes[name] == IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    finally:
        await child.stop()


async def test_its_state_outlives_a_kill_and_a_restart_on_the_same_file(temporal, tmp_path):
    child = await start(temporal, tmp_path)
    client = await Client.connect(temporal.address)
    await client.start_workflow("Nobody", id="kept", task_queue="nobody")
    os.kill(child.pid, signal.SIGKILL)
    await child.process.wait()
    await child.stop()
    again = await start(temporal, tmp_path)
    try:
        client = await Client.connect(temporal.address)
        assert (await client.get_workflow_handle("kept").describe()).id == "kept"
    finally:
        await again.stop()


async def test_its_database_is_locked_for_as_long_as_it_runs_whatever_became_of_its_supervisor(temporal, tmp_path):
    mine = DatabaseLock(tmp_path / "temporal.lock")
    await mine.acquire()
    child = await start(temporal, tmp_path, mine)
    mine.release()  # as a killed supervisor would
    with pytest.raises(CommandError, match="still holds"):
        await DatabaseLock(tmp_path / "temporal.lock").acquire(timeout_seconds=0.2)
    waiting = asyncio.create_task(DatabaseLock(tmp_path / "temporal.lock").acquire(timeout_seconds=30))
    await child.stop(now=True)
    await waiting


def test_no_secret_of_the_environment_reaches_it(monkeypatch):
    monkeypatch.setenv("HEADRACE_MASTER_KEY", "k1:secret")
    assert not any(name.startswith("HEADRACE") for name in temporal_environment())


def test_its_command_line_asks_for_what_makes_it_fast_and_for_loopback_only(temporal):
    line = " ".join(temporal.argv())
    for wanted in (
        "--ip 127.0.0.1",
        "--dynamic-config-value history.transferProcessorMaxPollRPS=2000",
        "--sqlite-pragma journal_mode=WAL",
        "--sqlite-pragma synchronous=NORMAL",
        f"--db-filename {temporal.database}",
    ):
        assert wanted in line
    headless = TemporalServer(temporal.program, temporal.database, temporal.port, None)
    assert "--headless" in headless.argv()
