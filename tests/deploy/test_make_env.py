"""`deploy/make-env`: fresh secrets, for the owner's eyes, once."""

import subprocess
from pathlib import Path

from store.vault import Vault
from tests.deploy import compose

SCRIPT = compose.ROOT / "deploy" / "make-env"


def make_env(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPT, path], capture_output=True, text=True, check=False)


def test_every_variable_has_a_value(environment: dict[str, str]) -> None:
    assert set(environment) == set(compose.read_env(compose.ROOT / ".env.example"))
    assert all(environment.values())


def test_what_the_example_sets_is_kept(environment: dict[str, str]) -> None:
    example = compose.read_env(compose.ROOT / ".env.example")
    assert {name: environment[name] for name, value in example.items() if value} == {
        name: value for name, value in example.items() if value
    }


def test_the_file_is_for_its_owner_alone_and_nothing_is_printed_of_it(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    result = make_env(path)
    assert path.stat().st_mode & 0o777 == 0o600
    example = compose.read_env(compose.ROOT / ".env.example")
    secrets = [value for name, value in compose.read_env(path).items() if not example[name]]
    assert not [secret for secret in secrets if secret in result.stdout + result.stderr]


def test_the_master_key_is_one_that_the_vault_takes(environment: dict[str, str]) -> None:
    vault = Vault.parse(environment["HEADRACE_MASTER_KEY"])
    assert vault.open(vault.seal(b"x", "test"), "test") == b"x"


def test_two_files_share_no_secret(environment: dict[str, str], tmp_path: Path) -> None:
    make_env(tmp_path / "other")
    other = compose.read_env(tmp_path / "other")
    example = compose.read_env(compose.ROOT / ".env.example")
    assert not [name for name, value in example.items() if not value and environment[name] == other[name]]


def test_passwords_need_no_quoting_in_a_url(environment: dict[str, str]) -> None:
    for name in ("APP_DB_PASSWORD", "POSTGRES_PASSWORD", "TEMPORAL_DB_PASSWORD"):
        assert environment[name].isalnum()
        assert len(environment[name]) >= 32


def test_an_existing_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("KEPT=1\n")
    result = make_env(path)
    assert result.returncode == 1
    assert "exists" in result.stderr
    assert path.read_text() == "KEPT=1\n"


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    result = make_env(tmp_path / "missing" / ".env")
    assert result.returncode == 1
    assert "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr
