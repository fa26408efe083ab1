"""`headrace secret`, and secrets in `headrace job submit`: values come in by files, variables and standard input."""

import io
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from store import secrets
from store.tables import Job, Secret, SecretUse
from tests.cli.conftest import Headrace, Server

EXAMPLES = Path(__file__).parents[2] / "examples"
VALUE = "canary-7f3a"


def stored(server: Server) -> dict[str, str]:
    """The values of the one secret that there is."""
    row = server.services.db.run_read(lambda s: s.exec(select(Secret)).one())
    return secrets.opened(server.services.vault, row)


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


class TestValues:
    def test_they_come_from_files_variables_and_standard_input(
        self, headrace: Headrace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text(f"{VALUE}\n")
        (tmp_path / "key.pem").write_text("-----BEGIN-----\nAAAA\n-----END-----\n")
        monkeypatch.setenv("MY_TOKEN", f" {VALUE}\n")
        type_in(monkeypatch, f"{VALUE}é\n".encode())
        words = ["--from-file", f"A={tmp_path}/token", "--from-file", f"PEM={tmp_path}/key.pem"]
        result = headrace("secret", "create", "hub", *words, "--from-env", "B=MY_TOKEN", "--from-stdin", "C")
        assert result.code == 0, result.err
        assert result.out.startswith("sec_")
        assert "--secret-env A=hub:A" in result.err
        assert stored(server) == {
            "A": VALUE,
            "PEM": "-----BEGIN-----\nAAAA\n-----END-----\n",
            "B": f" {VALUE}\n",
            "C": f"{VALUE}é",
        }
        assert VALUE not in result.out + result.err

    def test_on_a_terminal_the_value_is_asked_for_and_not_shown(
        self, headrace: Headrace, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = pty.openpty()
        with os.fdopen(theirs) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            asked = []
            monkeypatch.setattr("getpass.getpass", lambda prompt: (asked.append(prompt), VALUE)[1])
            assert headrace("secret", "create", "hub", "--from-stdin", "HF_TOKEN").code == 0
        os.close(ours)
        assert asked == ["HF_TOKEN: "]
        assert stored(server) == {"HF_TOKEN": VALUE}

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "no values were given"),
            (["--from-file", VALUE], "--from-file wants KEY=PATH"),
            (["--from-file", f"={VALUE}"], "--from-file wants KEY=PATH"),
            (["--from-env", f"K={VALUE}"], "a variable that is not set"),
            (["--from-file", "K=/not/there"], "/not/there cannot be read: No such file"),
            (["--from-env", "K=HOME", "--from-env", "K=PATH"], "the key K is there twice"),
            (["--from-env", "a b=HOME"], "data.a b: must be letters"),
        ],
    )
    def test_what_is_wrong_is_said_without_a_value(
        self, headrace: Headrace, server: Server, words: list[str], said: str
    ) -> None:
        result = headrace("secret", "create", "hub", *words)
        assert result.code == 2
        assert said in result.err
        assert VALUE not in result.out + result.err

    def test_what_is_not_text_is_refused(
        self, headrace: Headrace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        assert "is not UTF-8" in headrace("secret", "create", "x", "--from-file", f"K={tmp_path}/binary").err
        type_in(monkeypatch, b"\xff")
        assert "is not UTF-8" in headrace("secret", "create", "x", "--from-stdin", "K").err


@pytest.fixture
def hub(headrace: Headrace, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    made = headrace("secret", "create", "hub", "--from-env", "HF_TOKEN=MY_TOKEN", "--json")
    return str(json.loads(made.out)["id"])


class TestCommands:
    @pytest.mark.parametrize("by", ["id", "name"])
    def test_a_secret_is_shown_rotated_and_deleted(
        self, headrace: Headrace, server: Server, hub: str, by: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = hub if by == "id" else "hub"
        shown = headrace("secret", "get", named)
        assert [line.split(maxsplit=1) for line in shown.out.splitlines()][:3] == [
            ["secret", hub],
            ["name", "hub"],
            ["version", "1"],
        ]
        assert "never" in shown.out
        monkeypatch.setenv("MY_TOKEN", "second")
        rotated = headrace(
            "secret", "rotate", named, "--from-env", "HF_TOKEN=MY_TOKEN", "--expires-in-days", "7", "--json"
        )
        assert json.loads(rotated.out)["version"] == 2
        assert json.loads(rotated.out)["expires_at"] is not None
        assert stored(server) == {"HF_TOKEN": "second"}
        listed = headrace("secret", "list").out.splitlines()
        assert listed[0].split() == ["SECRET", "NAME", "VERSION", "KEYS", "UPDATED", "EXPIRES"]
        assert listed[1].split()[:4] == [hub, "hub", "2", "HF_TOKEN"]
        assert json.loads(headrace("secret", "list", "--json").out)[0]["id"] == hub
        deleted = headrace("secret", "delete", named)
        assert (deleted.code, deleted.err) == (0, f"deleted {hub}\n")
        assert headrace("secret", "get", named).code == 5

    def test_a_name_that_is_taken_and_one_that_is_not_there(
        self, headrace: Headrace, hub: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = headrace("secret", "create", "hub", "--from-env", "K=MY_TOKEN")
        assert (taken.code, "secret_name_conflict" in taken.err) == (11, True)
        assert "there is no secret 'other'" in headrace("secret", "delete", "other").err


class TestJobs:
    def submitted(self, server: Server) -> dict[str, Any]:
        job = server.services.db.run_read(lambda s: s.exec(select(Job)).one())
        return dict(json.loads(server.services.vault.open(job.workload_sealed, f"workload:{job.id}")))

    def test_the_example_names_its_secret(self, headrace: Headrace, server: Server, hub: str) -> None:
        assert headrace("job", "submit", EXAMPLES / "secret.yaml").code == 0
        assert self.submitted(server)["secret_env"] == {"HF_TOKEN": {"secret_id": hub, "key": "HF_TOKEN"}}
        in_use = headrace("secret", "delete", "hub")
        assert (in_use.code, "secret_in_use" in in_use.err) == (11, True)

    @pytest.mark.parametrize("by", ["id", "name"])
    def test_a_flag_names_one(self, headrace: Headrace, server: Server, hub: str, by: str) -> None:
        reference = f"T={hub if by == 'id' else 'hub'}:HF_TOKEN"
        words = ["--image", "registry.example/app:1", "--secret-env", reference, "--", "true"]
        assert headrace("job", "submit", *words).code == 0
        assert self.submitted(server)["secret_env"] == {"T": {"secret_id": hub, "key": "HF_TOKEN"}}

    def test_an_image_is_pulled_with_one(
        self, headrace: Headrace, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_TOKEN", VALUE)
        headrace("secret", "create", "reg", "--from-env", "username=HOME", "--from-env", "password=MY_TOKEN")
        words = ["--image", "registry.example/app:1", "--image-pull-secret", "reg", "--", "true"]
        assert headrace("job", "submit", *words).code == 0
        [use] = server.services.db.run_read(lambda s: s.exec(select(SecretUse)).all())
        assert use.key_names == ["password", "username"]

    @pytest.mark.parametrize("reference", ["T=hub", "T=:K", "T=hub:", "T"])
    def test_a_flag_that_names_none_is_refused(self, headrace: Headrace, server: Server, reference: str) -> None:
        words = ["--image", "registry.example/app:1", "--secret-env", reference, "--", "true"]
        assert headrace("job", "submit", *words).code == 2
