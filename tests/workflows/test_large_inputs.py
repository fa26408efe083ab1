"""Case 30: large scripts and large provider errors make a success or a 422, never a workflow without progress."""

import base64

import pytest

from providers.fake.faults import Answer, Operation
from tests.support.control_plane import CPU_JOB, ControlPlane

MIB = 1 << 20


@pytest.mark.parametrize("size", [int(1.9 * MIB), int(2.1 * MIB), 5 * MIB])
async def test_a_large_script_runs(plane: ControlPlane, size: int) -> None:
    script = b"true\n" + b"#" * (size - 5)
    container = {"image": "registry.example/app:1", "script_b64": base64.b64encode(script).decode()}

    job = await plane.until_terminal(await plane.create(container=container), seconds=60)

    assert job["state"] == "succeeded"


async def test_a_script_over_the_limit_is_refused_with_field_and_limit(plane: ControlPlane) -> None:
    container = {"image": "registry.example/app:1", "script_b64": base64.b64encode(b"#" * (5 * MIB + 1)).decode()}

    answer = await plane.client.post(
        "/api/v1/compute/jobs", json={**CPU_JOB, "container": container}, headers={"Idempotency-Key": "large"}
    )

    error = answer.json()["error"]
    assert answer.status_code == 422
    assert error["details"] == {"field": "container.script_b64", "limit": 5 * MIB}


@pytest.mark.parametrize("answer", [Answer.NO_CAPACITY, Answer.INVALID, Answer.INTERNAL])
async def test_a_provider_error_of_megabytes_is_shortened_and_the_job_goes_on(
    plane: ControlPlane, answer: Answer
) -> None:
    assert plane.cloud is not None
    await plane.cloud.fault(Operation.CREATE, answer, message_bytes=3 * MIB)

    job_id = await plane.fake()
    job = await plane.until_terminal(job_id, seconds=60)
    await plane.until_gone(job_id)

    assert job["state"] in {"succeeded", "failed"}
    handle = plane.temporal.get_workflow_handle(job_id)
    await handle.result()
    assert (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes < 200_000
    assert all(len(str(event.data)) < 10_000 for event in await plane.events(job_id))
