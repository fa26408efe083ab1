"""What an instance says that does not come up becomes a part of why its job failed: bounded, and without secrets."""

from collections.abc import AsyncIterator

import pytest

from activities.diagnosis import CHARACTERS, last_words
from domain.errors import RateLimited
from domain.ids import AttemptId
from domain.states import JobState
from providers.base import Handle, LogPage
from providers.fake.server import RunningCloud
from tests.support.control_plane import ControlPlane, control_plane

PASSWORD = "canary-registry-password"


@pytest.fixture
async def hasty(sqlite_url: str, temporal_address: str, cloud: RunningCloud) -> AsyncIterator[ControlPlane]:
    """A control plane that waits two seconds for a machine to come up."""
    waits = {"provisioning_timeout_seconds": 2, "max_attempts": 1}
    async with control_plane(sqlite_url, temporal_address, cloud_url=cloud.url, **waits) as running:
        yield running


async def test_a_machine_that_never_comes_up_is_quoted_in_the_reason(hasty: ControlPlane) -> None:
    assert hasty.cloud is not None
    await hasty.cloud.script(never_hello=True)
    job_id = await hasty.fake()
    job = await hasty.until_terminal(job_id)
    (attempt,) = await hasty.attempts(job_id)
    assert job["reason"]["code"] == "provisioning_timeout"
    assert job["reason"]["details"]["instance_id"] == attempt.id
    assert "booted" in job["reason"]["details"]["output"]
    await hasty.until_gone(job_id)


class Saying:
    """A provider of which only the log is asked."""

    def __init__(self, text: str | Exception) -> None:
        self._text = text

    async def logs(self, handle: Handle, cursor: str | None) -> LogPage:
        if isinstance(self._text, Exception):
            raise self._text
        return LogPage(self._text, None)


async def test_secrets_are_masked_before_the_end_is_cut_and_kept(plane: ControlPlane) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    await plane.cloud.script(never_hello=True)
    credential = {"username": "robot", "password": PASSWORD}
    container = {"image": "registry.example/app:1", "command": ["fake", "{}"], "registry_credential": credential}
    job_id = await plane.create(container=container)
    await plane.until_state(job_id, JobState.PROVISIONING)
    (attempt,) = await plane.attempts(job_id)
    token = plane.context.bootstrap_token(AttemptId(attempt.id)).get_secret_value()
    # The cut goes through the token.
    text = f"\0{PASSWORD}{'x' * 3_000}{token}{'y' * (CHARACTERS - len(token) // 2 - 1)}\ud83d"
    said = await last_words(plane.context, Saying(text), attempt)  # type: ignore[arg-type]
    assert len(said) == CHARACTERS
    assert not any(part in said for part in (PASSWORD, token, token[-len(token) // 2 :]))
    (attempt,) = await plane.attempts(job_id)
    assert attempt.last_words == said
    refused = Saying(RateLimited("slow down"))
    assert await last_words(plane.context, refused, attempt) == ""  # type: ignore[arg-type]
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)
