"""A job runs again as a new job with the same request, the part included that no answer ever shows."""

import json

import pytest

from store.tables import Job
from tests.cli.conftest import Headrace, Server

SUBMIT = ("job", "submit", "--image", "registry.example/app:1", "--name", "first", "--label", "a=b", "--max-cost", "2")


@pytest.fixture
def job_id(headrace: Headrace, server: Server) -> str:
    result = headrace(*SUBMIT, "--env", "SECRET=canary", "--", "echo", "hi")
    assert result.code == 0, result.err
    return result.out.strip()


def test_the_new_job_has_what_the_old_one_had_and_another_id(headrace, server, job_id):
    again = headrace("job", "rerun", job_id, "--json")
    assert again.code == 0, again.err
    old, new = json.loads(headrace("job", "get", job_id, "--json").out), json.loads(again.out)
    assert new["id"] != job_id
    for field in ("name", "labels", "compute", "limits", "project", "kind"):
        assert new[field] == old[field]
    rows = [server.services.db.run_read(lambda session, id=id: session.get(Job, id)) for id in (job_id, new["id"])]
    opened = [server.services.vault.open(row.workload_sealed, f"workload:{row.id}") for row in rows]
    assert opened[0] == opened[1]
    assert b"canary" in opened[0]
    assert "canary" not in again.out + again.err


def test_every_call_makes_another_job(headrace, server, job_id):
    made = {headrace("job", "rerun", job_id).out.strip() for _ in range(3)}
    assert len(made - {job_id}) == 3


def test_a_job_that_does_not_exist_or_is_anothers_is_not_found(headrace, server, job_id, monkeypatch):
    assert headrace("job", "rerun", "job_0000000000000000").code == 5

    def stranger(session):
        from domain.roles import Role
        from store import access

        now = server.services.clock()
        organization = access.create_organization(session, "strangers", now, enabled=True)
        return access.create_key(session, organization.id, "eve", Role.MEMBER, now)

    monkeypatch.setenv("HEADRACE_API_KEY", server.write(stranger).token)
    assert headrace("job", "rerun", job_id).code == 5
