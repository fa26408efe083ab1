"""`headrace vault` on a data directory: a new key on top of the file, everything sealed anew, what is left to do."""

import json
from pathlib import Path

import pytest

from domain.spec import Workload
from store.db import Database
from store.tables import Job
from store.vault import Vault, create_key_file, key_id_of
from tests.cli.conftest import Headrace
from tests.cli.stack import stack
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.fixture
def directory(tmp_path: Path, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a key file; its database is the fixture's."""
    monkeypatch.delenv("HEADRACE_MASTER_KEY", raising=False)
    monkeypatch.setenv("HEADRACE_DATABASE_URL", str(sqlite_database.url))
    create_key_file(tmp_path / "master.key")
    return tmp_path


@pytest.fixture
def job(directory: Path, sqlite_database: Database) -> Job:
    vault = Vault.load(None, directory / "master.key")
    return Factory(sqlite_database, SettableClock(), vault).job(workload=Workload(argv=("echo", "hi")))


def sealed_by(database: Database, job: Job) -> str:
    return key_id_of(database.run_read(lambda s: s.get_one(Job, job.id)).workload_sealed)


def keys_of(directory: Path) -> list[str]:
    return [line.partition(":")[0] for line in (directory / "master.key").read_text().splitlines()]


def test_a_rotation_puts_a_new_key_first_and_seals_everything_with_it(
    headrace: Headrace, directory: Path, job: Job, sqlite_database: Database
) -> None:
    running = Vault.load(None, directory / "master.key")
    [old] = keys_of(directory)
    assert sealed_by(sqlite_database, job) == old
    result = headrace("vault", "rotate", "--data-dir", directory)
    assert result.code == 0, result.err
    new, kept = keys_of(directory)
    assert kept == old
    assert f"the new master key is {new}" in result.err
    assert "job.workload_sealed: 1 sealed anew" in result.err
    assert f"keep {old}: Temporal's histories may still need it" in result.err
    assert sealed_by(sqlite_database, job) == new
    # What runs goes on.
    row = sqlite_database.run_read(lambda s: s.get_one(Job, job.id))
    assert running.open(row.workload_sealed, f"workload:{job.id}")
    status = json.loads(headrace("vault", "status", "--data-dir", directory, "--json").out)
    assert [(row["key_id"], row["state"]) for row in status] == [(new, "active"), (old, "not needed for rows")]
    assert status[1]["retired_at"] is not None


def test_an_interrupted_rotation_is_finished_without_another_key(
    headrace: Headrace, directory: Path, job: Job, sqlite_database: Database
) -> None:
    path = directory / "master.key"
    [old] = keys_of(directory)
    path.write_text(f"{Vault.generate()}\n{path.read_text()}")
    new, _ = keys_of(directory)
    status = headrace("vault", "status", "--data-dir", directory)
    assert [line.split()[:4] for line in status.out.splitlines()[1:]] == [
        [new, "active", "0", "0"],
        [old, "in", "use", "1"],
    ]
    assert "`headrace vault rotate` seals anew" in status.err
    result = headrace("vault", "rotate", "--data-dir", directory, "--json")
    assert (result.code, keys_of(directory), sealed_by(sqlite_database, job)) == (0, [new, old], new)
    assert headrace("vault", "rotate", "--data-dir", directory).code == 0
    assert len(keys_of(directory)) == 3


def test_a_key_that_is_missing_is_told_of(
    headrace: Headrace, directory: Path, job: Job, sqlite_database: Database
) -> None:
    (directory / "master.key").write_text(Vault.generate() + "\n")
    assert "? " in headrace("vault", "status", "--data-dir", directory).out
    result = headrace("vault", "rotate", "--data-dir", directory)
    assert result.code == 11
    assert "1 values cannot be opened" in result.err


def test_a_key_in_the_setting_is_rotated_by_who_sets_it(
    headrace: Headrace, directory: Path, job: Job, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (directory / "master.key").read_text().strip()
    monkeypatch.setenv("HEADRACE_MASTER_KEY", old)
    refused = headrace("vault", "rotate", "--data-dir", directory)
    assert (refused.code, "headrace vault new-key" in refused.err) == (2, True)
    new = headrace("vault", "new-key").out.strip()
    monkeypatch.setenv("HEADRACE_MASTER_KEY", f"{new},{old}")
    assert headrace("vault", "rotate", "--data-dir", directory).code == 0
    assert sealed_by(sqlite_database, job) == new.partition(":")[0]
    secret = new.partition(":")[2]
    for command in ("status", "rotate"):
        result = headrace("vault", command, "--data-dir", directory)
        assert secret not in result.out + result.err


def test_without_a_key_it_says_so(headrace: Headrace, directory: Path) -> None:
    (directory / "master.key").unlink()
    result = headrace("vault", "status", "--data-dir", directory)
    assert (result.code, "no master key at" in result.err) == (2, True)


@pytest.mark.e2e
def test_the_key_is_rotated_under_a_running_stack(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hf_0123456789")
    directory = tmp_path / "d"
    with stack(directory):
        monkeypatch.setenv("HEADRACE_DATA_DIR", str(directory))
        assert headrace("secret", "create", "hub", "--from-env", "T=TOKEN").code == 0
        words = ["--image", "app:1", "--secret-env", "T=hub:T", "--idempotency-key", "k"]
        command = ["--", "bash", "-c", "sleep 3; echo ${#T}"]
        first = headrace("job", "submit", *words, *command).out.strip()
        assert headrace("vault", "rotate").code == 0
        assert headrace("job", "wait", first).code == 0
        second = headrace("job", "rerun", first, "--follow")
        assert (second.code, second.out.splitlines()[-1]) == (0, "13"), second.err
        # What the old key has made counts on: cursors, fingerprints, histories.
        assert headrace("job", "submit", *words, *command).out.strip() == first
        assert headrace("replay", first).code == 0
        assert headrace("vault", "rotate").code == 0
        old = keys_of(directory)[-1]
        status = {row["key_id"]: row for row in json.loads(headrace("vault", "status", "--json").out)}
        assert (status[old]["sealed"], status[old]["retired_at"] is not None) == ({}, True)
        # The job that ran meanwhile is among those whose histories need it.
        assert status[old]["histories"] >= 1
