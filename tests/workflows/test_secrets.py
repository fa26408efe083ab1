"""Secrets reach a workload at its launch, in their newest version, and no history; what it writes of them is masked."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlmodel import Session, select

from activities.instances import instance_spec
from domain.states import JobState
from store import launch_secrets
from store.tables import Instance, Job, Secret, SecretUse
from tests.support.control_plane import ControlPlane, until

VALUE = 'hf_canary/+"5e1f'


async def secret(plane: ControlPlane, name: str = "token", **data: str) -> str:
    answer = await plane.client.post("/api/v1/compute/secrets", json={"name": name, "data": data or {"TOKEN": VALUE}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def rotate(plane: ControlPlane, secret_id: str, **data: str) -> None:
    answer = await plane.client.post(f"/api/v1/compute/secrets/{secret_id}/rotate", json={"data": data})
    assert answer.status_code == 200, answer.text


async def expire(plane: ControlPlane, secret_id: str) -> None:
    def change(session: Session) -> None:
        row = session.get_one(Secret, secret_id)
        row.expires_at = row.created_at - timedelta(seconds=1)
        session.add(row)

    await plane.services.db.write(change)


def container(secret_id: str, script: str, **more: Any) -> dict[str, Any]:
    return {
        "image": "registry.example/app:1",
        "command": ["fake", script],
        "secret_env": {"TOKEN": {"secret_id": secret_id, "key": "TOKEN"}},
        **more,
    }


async def row(plane: ControlPlane, job_id: str) -> Job:
    return await plane.services.db.read(lambda session: session.get_one(Job, job_id))


async def known(plane: ControlPlane, attempt: Instance) -> Sequence[str]:
    """The secrets that an attempt was launched with."""
    return await plane.services.db.read(lambda s: launch_secrets.known(s, plane.services.vault, attempt))


async def test_what_a_workload_writes_of_its_secrets_is_masked_and_its_uses_end_with_it(plane: ControlPlane) -> None:
    secret_id = await secret(plane)
    said = json.dumps({"stdout": f"token is {VALUE}\nand in a URL https://x/{quote(VALUE, safe='')}\n"})
    job_id = await plane.create(container=container(secret_id, said))
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert job["state"] == "succeeded"
    assert await plane.log_text(job_id) == "token is ***\nand in a URL https://x/***\n"
    assert await plane.services.db.read(lambda s: s.exec(select(SecretUse)).all()) == []
    [attempt] = await plane.attempts(job_id)
    assert attempt.secrets_sealed is None
    assert (await plane.client.delete(f"/api/v1/compute/secrets/{secret_id}")).status_code == 204


async def test_a_running_workload_keeps_its_version_and_a_retry_reads_the_new_one(plane: ControlPlane) -> None:
    secret_id = await secret(plane)
    job_id = await plane.create(
        container=container(secret_id, json.dumps({"run_seconds": 3})),
        retry={"on_preemption": True, "max_attempts": 2},
    )
    await plane.until_state(job_id, JobState.RUNNING)
    [first] = await plane.attempts(job_id)
    await rotate(plane, secret_id, TOKEN="hf_the_second", MORE="x")
    assert plane.cloud is not None
    assert await known(plane, first) == [VALUE]
    await plane.cloud.interrupt(first.id)

    async def relaunched() -> bool:
        return [a.secrets_sealed is not None for a in await plane.attempts(job_id)][1:] == [True]

    await until(relaunched, what="no second launch")
    second = (await plane.attempts(job_id))[1]
    assert await known(plane, second) == ["hf_the_second"]
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)


async def test_a_job_whose_secret_has_expired_fails_before_anything_is_rented(plane: ControlPlane) -> None:
    secret_id = await secret(plane)
    await expire(plane, secret_id)
    job = await plane.until_terminal(await plane.create(container=container(secret_id, "{}")))
    assert (job["state"], job["reason"]["code"]) == ("failed", "secret_expired")
    assert f"'token' ({secret_id}) expired at" in job["reason"]["message"]
    assert job["accrued_usd"] == 0
    assert await plane.attempts(job["id"]) == []


async def test_a_secret_that_expires_between_allocation_and_launch_fails_the_job(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None:
        """The look before the boot, just before the secret expires."""

    monkeypatch.setattr("activities.provision.refuse_unlaunchable", late)
    secret_id = await secret(plane)
    assert plane.cloud is not None
    await plane.cloud.script(hello_delay_seconds=1)
    job_id = await plane.create(container=container(secret_id, "{}"))
    await plane.until_state(job_id, JobState.PROVISIONING)
    await expire(plane, secret_id)
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "secret_expired")
    [attempt] = await plane.attempts(job_id)
    assert attempt.started_at is None
    assert "launch_refused" in [event.type for event in await plane.events(job_id)]
    assert await plane.cloud.alive() == []


async def test_an_image_is_pulled_with_the_secret_as_it_is_at_the_pull(plane: ControlPlane) -> None:
    secret_id = await secret(plane, "registry", username="robot", password="first-password", TOKEN="x")
    assert plane.cloud is not None
    await plane.cloud.script(hello_delay_seconds=1)
    job_id = await plane.create(container=container(secret_id, "{}", image_pull_secret=secret_id))
    await rotate(plane, secret_id, username="robot", password="second-password", TOKEN="x")
    await plane.until_state(job_id, JobState.PROVISIONING)
    [attempt] = await plane.attempts(job_id)
    assert plane.context is not None
    spec = await instance_spec(plane.context, await row(plane, job_id), attempt)
    assert spec.registry is not None
    assert (spec.registry.username, spec.registry.password.get_secret_value()) == ("robot", "second-password")
    assert spec.lifetime_seconds is None  # the job has no limits
    assert (await plane.until_terminal(job_id))["state"] == "succeeded"
    await plane.until_gone(job_id)


async def test_a_pull_secret_that_is_no_credential_fails_the_job_with_a_reason(plane: ControlPlane) -> None:
    secret_id = await secret(plane, "registry", username="ro:bot", password="first-password", TOKEN="x")
    job_id = await plane.create(container=container(secret_id, "{}", image_pull_secret=secret_id))
    job = await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "image_pull_failed")
    assert "username must be printable and hold no colon" in job["reason"]["message"]
