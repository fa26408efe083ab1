"""The API process: two listeners, the tasks beside them, signals, and restarts."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from sqlmodel import select

from domain.clock import utc_now
from domain.states import JobState
from settings import Settings
from store import bootstrap, liveness, schema
from store.db import Database
from store.tables import Liveness
from store.vault import Vault, create_key_file, hash_token
from tests.support.factory import Factory

_RUN = "from commands.processes import api; api()"


class ApiProcess:
    """`run_api` in a process of its own, over a data directory with a bootstrapped installation."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.socket = Settings(data_dir=data_dir).agent_socket
        self.log = (data_dir / "api.log").open("ab")
        environment = {**os.environ, "HEADRACE_DATA_DIR": str(data_dir), "HEADRACE_API_PORT": str(port)}
        # Nobody listens on the discard port: Temporal is away.
        environment["HEADRACE_TEMPORAL_ADDRESS"] = "127.0.0.1:9"
        self.process = subprocess.Popen([sys.executable, "-c", _RUN], env=environment, stdout=self.log, stderr=self.log)

    def wait_until_up(self) -> None:
        def up() -> bool:
            assert self.process.poll() is None, Path(self.log.name).read_text()
            try:
                return httpx.get(f"{self.url}/healthz").status_code == 200 and self.over_socket("/healthz") == 404
            except httpx.TransportError:
                return False

        eventually(up)

    def over_socket(self, path: str, method: str = "GET") -> int:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=60) as client:
            return client.request(method, f"http://agent{path}", headers={"Headrace-Protocol": "1"}).status_code

    def end(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(90)
        self.log.close()
        return code


def eventually(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    settings = Settings(data_dir=tmp_path)
    create_key_file(settings.key_file)
    database = Database(settings.sqlalchemy_url)
    schema.upgrade(database)
    database.close()
    return tmp_path


@pytest.fixture
def start(data_dir: Path) -> Iterator[Callable[..., ApiProcess]]:
    with ExitStack() as ends:

        def run(port: int | None = None) -> ApiProcess:
            process = ApiProcess(data_dir, port or free_port())
            ends.callback(process.end)
            return process

        yield run


def test_the_socket_serves_agents_and_nothing_else(start: Callable[..., ApiProcess]) -> None:
    api = start()
    api.wait_until_up()
    assert api.over_socket("/api/v1/compute/jobs") == 404
    assert api.over_socket("/docs") == 404
    assert api.over_socket("/agent/v1/launch", "POST") == 401
    assert httpx.post(f"{api.url}/agent/v1/launch", headers={"Headrace-Protocol": "1"}).status_code == 401


def test_it_serves_before_temporal_is_there_and_says_so(start: Callable[..., ApiProcess]) -> None:
    api = start()
    api.wait_until_up()
    answer = httpx.get(f"{api.url}/readyz")
    parts = answer.json()["error"]["details"]["parts"]
    assert (answer.status_code, parts["database"]["status"], parts["temporal"]["status"]) == (503, "ok", "down")
    assert "127.0.0.1:9" in parts["temporal"]["message"]


def test_a_progress_bar_that_stands_still_is_shown(start: Callable[..., ApiProcess], data_dir: Path) -> None:
    """Nothing more comes, so only a task beside the listeners can show it."""
    settings = Settings(data_dir=data_dir)
    vault = Vault.load(None, settings.key_file)
    database = Database(settings.sqlalchemy_url)
    factory = Factory(database, utc_now, vault)
    key, job = factory.key(), factory.job(JobState.RUNNING)
    factory.instance(job, started_at=utc_now(), session_hash=hash_token("session"))
    database.close()
    api = start()
    api.wait_until_up()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(api.socket)), timeout=60) as agent:
        sent = agent.post(
            "http://agent/agent/v1/logs/stdout?offset=0",
            content=b"10%\r50%\r",
            headers={"Authorization": "Bearer session"},
        )
    assert (sent.status_code, sent.text) == (200, "8")
    headers = {"Authorization": f"Bearer {key.token}"}

    def shown() -> list[str]:
        lines = httpx.get(f"{api.url}/api/v1/compute/jobs/{job.id}/logs", headers=headers).json()["data"]
        return [line["message"] for line in lines]

    eventually(lambda: shown() == ["50%"], seconds=30)


def test_it_proves_that_it_is_there_to_be_reached(start: Callable[..., ApiProcess], data_dir: Path) -> None:
    start().wait_until_up()
    database = Database(Settings(data_dir=data_dir).sqlalchemy_url)
    try:
        query = select(Liveness.kind)
        eventually(lambda: database.run_read(lambda s: s.exec(query).first()) == liveness.API)
    finally:
        database.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start: Callable[..., ApiProcess], number: int) -> None:
    api = start()
    api.wait_until_up()
    assert api.end(number) == 0


def test_it_starts_again_after_a_kill_on_the_same_port_and_socket(start: Callable[..., ApiProcess]) -> None:
    first = start()
    first.wait_until_up()
    first.end(signal.SIGKILL)
    assert first.socket.exists()
    start(first.port).wait_until_up()


def test_it_ends_to_be_started_again_once_its_socket_was_removed(start: Callable[..., ApiProcess]) -> None:
    api = start()
    api.wait_until_up()
    api.socket.unlink()
    assert api.process.wait(90) != 0
    start(api.port).wait_until_up()


def test_a_taken_port_ends_it_with_an_error(start: Callable[..., ApiProcess]) -> None:
    first = start()
    first.wait_until_up()
    second = start(first.port)
    assert second.process.wait(90) != 0


def test_a_missing_master_key_ends_it_with_an_error(start: Callable[..., ApiProcess], data_dir: Path) -> None:
    Settings(data_dir=data_dir).key_file.unlink()
    assert start().process.wait(90) != 0


def test_a_key_of_the_first_start_opens_the_api(start: Callable[..., ApiProcess], data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir)
    database = Database(settings.sqlalchemy_url)
    made = bootstrap.first_start(database, utc_now())
    database.close()
    assert made is not None
    api = start()
    api.wait_until_up()
    headers = {"Authorization": f"Bearer {made.api_key}"}
    assert httpx.get(f"{api.url}/api/v1/compute/jobs", headers=headers).json()["total"] == 0
