"""The agent routes by themselves: who may do what, in which state, and what malformed input gets."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from sqlmodel import select

from agent.bootstrap import script_digest
from api.agent import create_agent_app
from api.services import Services
from domain.ids import AttemptId
from domain.spec import Workload
from domain.states import JobState
from settings import Settings
from store.agent_scripts import keep
from store.db import Database
from store.lifecycle import request_termination
from store.logs.blobs import open_blob_store
from store.logs.store import LogStore
from store.tables import Instance, Job, JobEvent
from store.vault import Vault
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.logs import texts

NONCE = "0123456789abcdef0123456789abcdef"
HANDLE = {"provider_id": "x", "resource_type": "container"}


@pytest.fixture
def services(database: Database, vault: Vault, clock: SettableClock, tmp_path: Path) -> Services:
    settings = Settings(data_dir=tmp_path)
    return Services(settings, database, vault, LogStore(database, open_blob_store(settings.segment_url), clock), clock)


@pytest.fixture
async def client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_agent_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://headrace/agent/v1") as opened:
        yield opened


@pytest.fixture
def job(factory: Factory) -> Job:
    return factory.job(JobState.PROVISIONING, workload=Workload(argv=("echo", "it's")))


@pytest.fixture
def instance(factory: Factory, job: Job) -> Instance:
    return factory.instance(job, handle=HANDLE)


@pytest.fixture
def bootstrap(vault: Vault, instance: Instance) -> dict[str, str]:
    return {"Authorization": f"Bearer {vault.bootstrap_token(AttemptId(instance.id))}", "Headrace-Protocol": "1"}


@pytest.fixture
async def session(
    client: httpx.AsyncClient, vault: Vault, instance: Instance, bootstrap: dict[str, str]
) -> dict[str, str]:
    """The headers of an agent that has launched."""
    answer = await client.post("/launch", headers=bootstrap | {"Headrace-Nonce": NONCE})
    assert answer.status_code == 200, answer.text
    return {"Authorization": f"Bearer {vault.session_token(AttemptId(instance.id), NONCE)}"}


def row_of(database: Database, instance: Instance) -> Instance:
    return database.run_read(lambda s: s.get_one(Instance, instance.id))


def state_of(database: Database, job: Job) -> JobState:
    return JobState(database.run_read(lambda s: s.get_one(Job, job.id)).state)


class TestRentedMachines:
    async def test_the_bootstrap_token_fetches_the_agent_and_tells_of_an_interruption_also_after_the_launch(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, session: dict[str, str],
        clock: SettableClock, job: Job,
    ) -> None:  # fmt: skip
        digest = script_digest("true\n")
        for _ in range(2):
            database.run_write(lambda s: keep(s, digest, "true\n", clock()))
        assert (await client.get(f"/script/{digest}", headers=bootstrap)).text == "true\n"
        assert (await client.get(f"/script/{digest}", headers=session)).status_code == 401
        assert (await client.post("/notice", headers=session)).status_code == 401
        for moment in ("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "soon", "2027-01-31T12:00:00"):
            assert (await client.post("/notice", headers=bootstrap, params={"at": moment})).status_code == 422
        for _ in range(2):
            assert (await client.post("/notice", headers=bootstrap)).status_code == 200
        exit_report = b"status=143&signal=15&stdout=0&stderr=0&interrupted=1"
        assert (await client.post("/exit", headers=session, content=exit_report)).status_code == 200
        assert (await client.post("/notice", headers=bootstrap)).status_code == 409
        events = [event.type for event in database.run_read(lambda s: s.exec(select(JobEvent)).all())]
        assert events.count("interruption_noticed") == 1
        # What comes of it is the workflow's to decide.
        assert state_of(database, job) is JobState.RUNNING
        assert "workload_exited" in events


class TestLaunch:
    async def test_the_spec_is_given_again_to_the_same_nonce_and_refused_to_another(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, job: Job
    ) -> None:
        first = await client.post("/launch", headers=bootstrap | {"Headrace-Nonce": NONCE})
        again = await client.post("/launch", headers=bootstrap | {"Headrace-Nonce": NONCE})
        other = await client.post("/launch", headers=bootstrap | {"Headrace-Nonce": "f" * 32})
        assert (first.status_code, again.status_code, other.status_code) == (200, 200, 403)
        assert first.content == again.content
        assert "hr_argv=('echo' 'it'\\''s')" in first.text
        events = database.run_read(lambda s: s.exec(select(JobEvent)).all())
        assert [event.data["alert"] for event in events if event.type == "nonce_refused"] == [True]

    async def test_a_terminated_job_answers_stop(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, job: Job, clock: SettableClock
    ) -> None:
        database.run_write(lambda s: request_termination(s, job.id, clock()))
        answer = await client.post("/launch", headers=bootstrap | {"Headrace-Nonce": NONCE})
        assert (answer.status_code, answer.text) == (409, "stop")

    async def test_an_attempt_that_is_not_written_down_yet_is_asked_to_wait(
        self, client: httpx.AsyncClient, factory: Factory, vault: Vault
    ) -> None:
        early = factory.instance(factory.job(JobState.ALLOCATING))
        headers = {"Authorization": f"Bearer {vault.bootstrap_token(AttemptId(early.id))}", "Headrace-Protocol": "1"}
        assert (await client.post("/launch", headers=headers | {"Headrace-Nonce": NONCE})).status_code == 503

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Headrace-Nonce": "short"}, 422),
            ({"Headrace-Nonce": NONCE.upper()}, 422),
            ({"Headrace-Nonce": NONCE, "Headrace-Protocol": "2"}, 400),
            ({"Headrace-Nonce": NONCE, "Authorization": "Bearer hrb.inst-aaaaaaaaaaaaaaaaaaaa.AAAA"}, 401),
            ({"Headrace-Nonce": NONCE, "Authorization": "Bearer ünknown".encode("latin-1")}, 401),
            ({"Headrace-Nonce": NONCE, "Authorization": "Basic eDp5"}, 401),
        ],
    )
    async def test_a_malformed_launch_is_refused(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], headers: dict[str, str], status: int
    ) -> None:
        assert (await client.post("/launch", headers=bootstrap | headers)).status_code == status

    async def test_a_token_of_an_attempt_that_does_not_exist_is_refused(
        self, client: httpx.AsyncClient, vault: Vault
    ) -> None:
        token = vault.bootstrap_token(AttemptId("inst-" + "a" * 20))
        headers = {"Authorization": f"Bearer {token}", "Headrace-Protocol": "1", "Headrace-Nonce": NONCE}
        assert (await client.post("/launch", headers=headers)).status_code == 401


class TestOutput:
    async def test_a_chunk_is_acknowledged_an_overlap_skipped_and_a_gap_refused(
        self, client: httpx.AsyncClient, session: dict[str, str]
    ) -> None:
        answers = [
            await client.post(f"/logs/stdout?offset={offset}", content=data, headers=session)
            for offset, data in ((0, b"abc"), (1, b"bcd"), (9, b"x"), (4, b""))
        ]
        assert [(answer.status_code, answer.text) for answer in answers] == [
            (200, "3"), (200, "4"), (409, "4"), (200, "4"),
        ]  # fmt: skip

    @pytest.mark.parametrize("exit_first", [True, False])
    async def test_the_log_is_complete_once_all_bytes_of_the_report_are_stored(
        self, client: httpx.AsyncClient, session: dict[str, str], services: Services, database: Database,
        instance: Instance, job: Job, exit_first: bool,
    ) -> None:  # fmt: skip
        requests = [
            ("/logs/stdout?offset=0", b"last"),
            ("/exit", b"status=0&signal=0&stdout=4&stderr=0"),
        ]
        for path, body in reversed(requests) if exit_first else requests:
            assert row_of(database, instance).drained_at is None
            assert (await client.post(path, content=body, headers=session)).status_code == 200
        assert row_of(database, instance).drained_at is not None
        assert [line.message for line in (await services.logs.page(job.id, limit=10)).lines] == ["last"]

    async def test_chunks_are_taken_until_the_instance_is_confirmed_absent(
        self, client: httpx.AsyncClient, session: dict[str, str], database: Database, instance: Instance,
        clock: SettableClock,
    ) -> None:  # fmt: skip
        def close(**columns: object) -> None:
            def change(s: object) -> None:
                row = s.get_one(Instance, instance.id)  # type: ignore[attr-defined]
                for name, value in columns.items():
                    setattr(row, name, value)

            database.run_write(change)

        await client.post("/exit", content=b"status=0&signal=0&stdout=2&stderr=0", headers=session)
        close(terminal_at=clock(), delete_requested_at=clock())
        assert (await client.post("/logs/stdout?offset=0", content=b"a", headers=session)).status_code == 200
        close(confirmed_absent_at=clock())
        late = await client.post("/logs/stdout?offset=1", content=b"b", headers=session)
        assert (late.status_code, late.text.split(":")[0]) == (401, "revoked")

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/logs/stdout", 422),
            ("/logs/stdout?offset=-1", 422),
            ("/logs/stdout?offset=x", 422),
            ("/logs/stdout?offset=99999999999999999999999", 422),
            ("/logs/system?offset=0", 422),
            ("/logs/stdout/x?offset=0", 404),
        ],
    )
    async def test_a_malformed_place_is_refused(
        self, client: httpx.AsyncClient, session: dict[str, str], path: str, status: int
    ) -> None:
        assert (await client.post(path, content=b"x", headers=session)).status_code == status

    async def test_a_chunk_over_a_mebibyte_is_refused_whole(
        self, client: httpx.AsyncClient, session: dict[str, str], services: Services, instance: Instance
    ) -> None:
        answer = await client.post("/logs/stdout?offset=0", content=b"x" * (1 << 20 | 1), headers=session)
        assert answer.status_code == 413
        stored = await services.db.read(lambda s: services.logs.acked(s, instance.id))
        assert stored == {"stdout": 0, "stderr": 0}


class TestExit:
    async def test_the_first_report_counts_and_implies_the_start(
        self, client: httpx.AsyncClient, session: dict[str, str], database: Database, instance: Instance, job: Job
    ) -> None:
        for body in (b"status=3&signal=0&stdout=0&stderr=0", b"status=0&signal=0&stdout=5&stderr=5"):
            assert (await client.post("/exit", content=body, headers=session)).status_code == 200
        row = row_of(database, instance)
        assert row.exit_report is not None
        assert row.exit_report["status"] == 3
        assert row.started_at is not None
        assert state_of(database, job) is JobState.FINALIZING

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"status=0&signal=0&stdout=0",
            b"status=256&signal=0&stdout=0&stderr=0",
            b"status=-1&signal=0&stdout=0&stderr=0",
            b"status=0&signal=65&stdout=0&stderr=0",
            b"status=0&signal=0&stdout=1e3&stderr=0",
            b"status=0&signal=0&stdout=0&stderr=0&oom_killed=true",
            b"\xff\xfe",
            b"&".join(b"a%d=1" % i for i in range(100)),
        ],
    )
    async def test_a_malformed_report_is_refused_and_changes_nothing(
        self, client: httpx.AsyncClient, session: dict[str, str], database: Database, instance: Instance, body: bytes
    ) -> None:
        assert (await client.post("/exit", content=body, headers=session)).status_code in {400, 422}
        assert row_of(database, instance).exit_report is None


class TestSsh:
    KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPXjAT7RzM2DvV7JhV8CmgGFVR4mdxpKk6h2pCuVtuSF"

    @pytest.fixture
    def job(self, factory: Factory, database: Database) -> Job:
        job = factory.job(JobState.PROVISIONING)
        job.spec = job.spec | {"ssh_public_key": self.KEY}
        return database.run_write(lambda s: s.merge(job))

    async def test_the_first_host_key_counts(
        self, client: httpx.AsyncClient, session: dict[str, str], database: Database, instance: Instance
    ) -> None:
        other = self.KEY.replace("PXj", "PXk")
        assert (await client.post("/ssh", headers=session, content=f"{self.KEY}\n")).status_code == 200
        for content in (other, ""):
            assert (await client.post("/ssh", headers=session, content=content)).status_code == 200
        assert row_of(database, instance).ssh_host_key == self.KEY
        events = database.run_read(lambda s: s.exec(select(JobEvent)).all())
        assert [event.data["host_key"] for event in events if event.type == "ssh_opened"] == [self.KEY]

    async def test_an_image_without_sshd_is_told_in_the_log(
        self, client: httpx.AsyncClient, session: dict[str, str], services: Services, job: Job,
        database: Database, instance: Instance,
    ) -> None:  # fmt: skip
        for _ in range(2):
            assert (await client.post("/ssh", headers=session, content="")).status_code == 200
        assert row_of(database, instance).ssh_host_key is None
        assert [line for line in await texts(services.logs, job.id, source="system") if "no sshd" in line] == [
            "no SSH: the image has no sshd (openssh-server), or it does not start"
        ]

    async def test_what_is_no_key_or_comes_without_the_session_is_refused(
        self, client: httpx.AsyncClient, session: dict[str, str], bootstrap: dict[str, str]
    ) -> None:
        assert (await client.post("/ssh", headers=session, content="canary")).status_code == 422
        assert (await client.post("/ssh", headers=session, content="x" * 70_000)).status_code == 413
        assert (await client.post("/ssh", headers=bootstrap, content=self.KEY)).status_code == 401


async def test_a_job_that_wants_no_ssh_takes_no_host_key(client: httpx.AsyncClient, session: dict[str, str]) -> None:
    assert (await client.post("/ssh", headers=session, content=TestSsh.KEY)).status_code == 409


class TestBeforeTheLaunch:
    async def test_progress_becomes_system_lines_and_a_fault_the_attempts_reason(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], services: Services, database: Database,
        instance: Instance, job: Job,
    ) -> None:  # fmt: skip
        await client.post("/progress", content="pulling 10 %\n\npulling é\0\n".encode(), headers=bootstrap)
        await client.post("/fault", content=b"no driver", headers=bootstrap)
        lines = (await services.logs.page(job.id, source="system", limit=10)).lines
        assert [line.message for line in lines] == ["pulling 10 %", "pulling é�", "agent fault: no driver"]
        assert row_of(database, instance).reason_message == "no driver"

    async def test_hello_is_the_first_sign_of_life(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], database: Database, instance: Instance
    ) -> None:
        assert (await client.post("/hello", headers=bootstrap)).status_code == 200
        assert row_of(database, instance).hello_at is not None

    @pytest.mark.parametrize("path", ["/progress", "/fault", "/hello"])
    async def test_the_bootstrap_token_says_nothing_more_once_the_spec_was_handed_out(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], session: dict[str, str], services: Services,
        job: Job, path: str,
    ) -> None:  # fmt: skip
        """A workload can read the token, and runs before its start is reported."""
        assert (await client.post(path, content=b"forged", headers=bootstrap)).status_code == 409
        assert (await services.logs.page(job.id, source="system", limit=10)).lines == []

    async def test_a_message_over_its_bound_is_refused(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str]
    ) -> None:
        assert (await client.post("/progress", content=b"x" * (64 << 10 | 1), headers=bootstrap)).status_code == 413


class TestOrders:
    async def test_an_order_that_stands_is_answered_at_once_and_else_none(
        self, client: httpx.AsyncClient, session: dict[str, str], database: Database, job: Job, clock: SettableClock
    ) -> None:
        assert (await client.get("/orders", headers=session)).text == "none"
        database.run_write(lambda s: request_termination(s, job.id, clock()))
        assert (await client.get("/orders?wait=30", headers=session)).text == "stop"

    @pytest.mark.parametrize("wait", ["-1", "x", "nan", "1e9"])
    async def test_a_malformed_wait_is_refused(
        self, client: httpx.AsyncClient, session: dict[str, str], wait: str
    ) -> None:
        assert (await client.get(f"/orders?wait={wait}", headers=session)).status_code == 422

    @pytest.mark.parametrize("path", ["/started", "/exit", "/logs/stdout?offset=0"])
    async def test_a_bootstrap_token_is_no_session_token(
        self, client: httpx.AsyncClient, bootstrap: dict[str, str], path: str
    ) -> None:
        body = b"status=0&signal=0&stdout=0&stderr=0"
        assert (await client.post(path, content=body, headers=bootstrap)).status_code == 401


async def test_nothing_but_agent_routes_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/", "/api/v1/compute/jobs", "/healthz", "/docs", "/openapi.json"):
        assert (await client.get(f"http://headrace{path}")).status_code == 404
