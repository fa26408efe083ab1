"""The host agent asks its cloud's metadata whether the machine is taken back, and tells the workload and the plane."""

from collections.abc import Iterator

import pytest

from tests.agent.machine import ATTEMPT, Machine, Plane, script_for
from tests.agent.metadata import Metadata, metadata_service

INSTANCE = "/computeMetadata/v1/instance"
ACTION = '{"action": "terminate", "time": "2026-11-30T23:00:00Z"}'


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_service() as service:
        yield service


@pytest.mark.parametrize(
    ("cloud", "path", "answer", "notice"),
    [
        ("aws", "/latest/meta-data/spot/instance-action", ACTION, "notice?at=2026-11-30T23:00:00Z"),
        ("gcp", f"{INSTANCE}/preempted", "TRUE", "notice"),
        ("gcp", f"{INSTANCE}/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", "notice"),
    ],
    ids=["spot", "preempted", "maintenance"],
)
def test_a_notice_is_told_to_the_plane_and_to_the_workload(
    machine: Machine, plane: Plane, metadata: Metadata, cloud: str, path: str, answer: str, notice: str
) -> None:
    machine.says("runs", "until it is told")
    metadata.answers = {f"{INSTANCE}/preempted": "FALSE", f"{INSTANCE}/maintenance-event": "NONE", path: answer}
    console = machine.boot(script_for(plane, cloud=cloud), HEADRACE_HOST_METADATA=metadata.url)
    assert f"kill --signal=USR1 {ATTEMPT}" in machine.read("argv").splitlines()
    assert [said for said, _, _ in plane.posts if "notice" in said] == [f"/agent/v1/{notice}"]
    assert "the provider takes this machine back" in console
    assert "shutdown -P +1 " in machine.read("calls")


def test_a_risk_is_told_once_to_the_plane_only_and_nothing_ends(
    machine: Machine, plane: Plane, metadata: Metadata
) -> None:
    metadata.answers["/latest/meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-30T22:50:00Z"}'
    # It ends by itself, a while after the risk was told.
    machine.tool("sleep", '#!/bin/bash\necho >>"$BOX/naps"\n(($(wc -l <"$BOX/naps") < 5)) || rm -f "$BOX/runs"\n')
    machine.says("runs", "until it ends by itself")
    machine.boot(script_for(plane, cloud="aws"), HEADRACE_HOST_METADATA=metadata.url)
    assert [said for said, _, _ in plane.posts if "notice" in said] == ["/agent/v1/notice?kind=risk"]
    assert "kill " not in machine.read("argv")


def test_a_machine_that_is_in_no_cloud_asks_nobody(machine: Machine, plane: Plane, metadata: Metadata) -> None:
    machine.boot(script_for(plane), HEADRACE_HOST_METADATA=metadata.url)
    assert metadata.asked == []
