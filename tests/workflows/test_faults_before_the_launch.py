"""What an agent says before it launches ends the attempt at once: a machine that stays up is no reason to wait."""

import httpx
import pytest

from domain.ids import AttemptId
from domain.states import JobState
from tests.support.control_plane import ControlPlane


@pytest.mark.parametrize("kind", ["image_pull_failed", "bootstrap_failed"])
async def test_a_fault_ends_the_boot_with_its_kind_and_its_words(plane: ControlPlane, kind: str) -> None:
    assert plane.context is not None
    assert plane.cloud is not None
    await plane.cloud.script(never_hello=True)
    job_id = await plane.fake()
    await plane.until_state(job_id, JobState.PROVISIONING)
    (attempt,) = await plane.attempts(job_id)

    token = plane.context.bootstrap_token(AttemptId(attempt.id)).get_secret_value()
    transport = httpx.AsyncHTTPTransport(uds=str(plane.settings.agent_socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace") as agent:
        told = await agent.post(
            f"/agent/v1/fault?kind={kind}", content=b"manifest unknown", headers={"Authorization": f"Bearer {token}"}
        )
    assert told.status_code == 200

    job = await plane.until_terminal(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", kind)
    assert "manifest unknown" in job["reason"]["message"]
    await plane.until_gone(job_id)
