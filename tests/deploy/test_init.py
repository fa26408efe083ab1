"""`headrace db init`: what a deployment's first job does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from domain.clock import utc_now
from domain.roles import Role
from store.access import authenticate
from store.db import Database

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(empty_database_url: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        variables = os.environ | {
            "HEADRACE_DATABASE_URL": empty_database_url,
            "HEADRACE_DATA_DIR": str(tmp_path),
            "HEADRACE_PUBLIC_URL": "https://headrace.example",
        }
        argv = [sys.executable, "-m", "cli", "db", "init", *arguments]
        return subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)

    return command


def role_of(url: str, credentials: Path) -> Role | None:
    database = Database(url)
    try:
        key = json.loads(credentials.read_text())["api_key"]
        principal = database.run_read(lambda session: authenticate(session, key, utc_now()))
        return principal.role if principal else None
    finally:
        database.close()


def test_the_first_run_leaves_an_admin_key_in_a_private_file(run, empty_database_url: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = run()
    assert result.returncode == 0, result.stderr
    credentials = tmp_path / "credentials.json"
    assert credentials.stat().st_mode & 0o777 == 0o600
    assert json.loads(credentials.read_text())["api_url"] == "https://headrace.example"
    assert json.loads(credentials.read_text())["api_key"] not in result.stdout + result.stderr
    assert role_of(empty_database_url, credentials) is Role.CLUSTER_ADMIN


def test_a_second_run_changes_nothing_and_new_key_makes_another(run, empty_database_url: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run()
    before = (tmp_path / "credentials.json").read_text()
    assert run().returncode == 0
    assert (tmp_path / "credentials.json").read_text() == before
    other = tmp_path / "other.json"
    assert run("--new-key", "--credentials", str(other)).returncode == 0
    assert role_of(empty_database_url, other) is Role.CLUSTER_ADMIN
    assert role_of(empty_database_url, tmp_path / "credentials.json") is Role.CLUSTER_ADMIN


def test_a_new_key_leaves_the_addresses_of_an_embedded_stack(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run()
    credentials = tmp_path / "credentials.json"
    stack = {"temporal_address": "127.0.0.1:7233", "api_key": "hr_old"}
    credentials.write_text(json.dumps({**json.loads(credentials.read_text()), **stack}))
    assert run("--new-key").returncode == 0
    after = json.loads(credentials.read_text())
    assert after["temporal_address"] == "127.0.0.1:7233"
    assert after["api_key"] != "hr_old"


def test_a_directory_that_is_missing_is_an_error_before_anything_is_made(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = run("--credentials", str(tmp_path / "missing" / "file.json"))
    assert result.returncode == 2
    assert "does not exist" in result.stderr
    assert run().returncode == 0
    assert (tmp_path / "credentials.json").exists()
