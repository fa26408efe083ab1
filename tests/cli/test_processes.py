"""What a command costs before it does anything, and what it says about a wrong environment."""

import subprocess
import sys

import pytest

from tests.cli.conftest import Headrace

# Each takes a quarter of a second or more to import.
HEAVY = ("sqlalchemy", "temporalio", "fastapi", "opentelemetry.sdk", "providers.local")


def test_commands_that_only_talk_to_a_server_import_nothing_heavy():
    program = f"import sys, commands.root; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("command", [("worker",), ("api",), ("db", "upgrade")])
def test_a_malformed_setting_is_named_and_its_value_is_not_shown(headrace: Headrace, monkeypatch, command):
    monkeypatch.setenv("HEADRACE_API_PORT", "s3cret")
    result = headrace(*command)
    assert result.code == 2
    assert "HEADRACE_API_PORT" in result.err
    assert "s3cret" not in result.err


def test_upgrading_a_database_twice_says_what_was_done_and_then_nothing(headrace: Headrace, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_DATA_DIR", str(tmp_path / "d"))
    first, second = headrace("db", "upgrade"), headrace("db", "upgrade")
    assert (first.code, second.code) == (0, 0)
    assert "applied 0001" in first.err
    assert "up to date" in second.err
