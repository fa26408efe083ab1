"""`POST /jobs/{id}/rerun`: the same work again, as a job of its own."""

import json

from sqlmodel import Session

from domain.spec import Workload
from store.tables import Job
from tests.api.conftest import JOB, Api


def _rerun(api: Api, job_id: str, key: str = "again") -> tuple[int, dict[str, object]]:
    answer = api.client.post(f"/jobs/{job_id}/rerun", headers={"Idempotency-Key": key})
    return answer.status_code, answer.json()


def test_a_rerun_is_a_new_job_with_the_same_work(api: Api) -> None:
    body = {**JOB, "name": "train", "labels": {"team": "a"}, "limits": {"max_cost_usd": 1.5}}
    body["container"] = {**JOB["container"], "env": {"TOKEN": "s3cret"}}
    first = api.create(body).json()

    status, second = _rerun(api, first["id"])

    assert status == 201
    assert second["id"] != first["id"]
    assert [second[k] for k in ("name", "limits", "compute", "state")] == [
        "train",
        first["limits"],
        first["compute"],
        "requested",
    ]

    def workload(session: Session) -> Workload:
        job = session.get_one(Job, second["id"])
        opened = api.services.vault.open(job.workload_sealed, f"workload:{job.id}")
        return Workload.model_validate(json.loads(opened))

    assert api.services.db.run_read(workload).env == {"TOKEN": "s3cret"}


def test_a_repeated_rerun_with_one_key_is_one_job(api: Api) -> None:
    job_id = api.create().json()["id"]

    first, second = _rerun(api, job_id), _rerun(api, job_id)

    assert (first[0], second[0]) == (201, 200)
    assert first[1]["id"] == second[1]["id"]


def test_a_rerun_of_an_unknown_job_is_404(api: Api) -> None:
    assert _rerun(api, "job_0000000000000000")[0] == 404


def test_a_rerun_after_the_credential_was_discarded_says_what_to_do(api: Api) -> None:
    container = {**JOB["container"], "registry_credential": {"username": "u", "password": "p4ssword"}}
    job_id = api.create({**JOB, "container": container}).json()["id"]

    def discard(session: Session) -> None:
        job = session.get_one(Job, job_id)
        job.registry_sealed = None
        session.add(job)

    assert _rerun(api, job_id, "while it is there")[0] == 201
    api.write(discard)
    assert _rerun(api, job_id, "while it is there")[0] == 200
    status, answer = _rerun(api, job_id, "afterwards")

    assert (status, answer["error"]["code"]) == (409, "credential_discarded")  # type: ignore[index]
