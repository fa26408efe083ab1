"""`headrace job submit --ssh-key`: whose key a job takes, and that a private one goes nowhere."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from store.tables import Job
from tests.cli.conftest import Headrace, Server
from tests.cli.test_job_commands import SUBMIT


class Key:
    def __init__(self, directory: Path) -> None:
        made = Ed25519PrivateKey.generate()
        self.line = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " me@läptop"
        self.public, self.private = directory / "id.pub", directory / "id"
        self.public.write_text(self.line + "\r\n")
        self.private.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return Key(tmp_path)


@pytest.mark.parametrize("how", ["file", "text"])
def test_the_job_takes_the_key_and_says_how_to_enter(headrace: Headrace, server: Server, key: Key, how: str) -> None:
    result = headrace(*SUBMIT, "--ssh-key", str(key.public) if how == "file" else key.line, "--", "true")
    job_id = result.out.strip()
    assert server.services.db.run_read(lambda s: s.get_one(Job, job_id).spec["ssh_public_key"]) == key.line
    assert f"headrace job ssh {job_id}" in result.err


def test_no_key_is_taken_that_was_not_given(headrace: Headrace) -> None:
    result = headrace(*SUBMIT, "--dry-run", "--", "true")
    assert "access" not in json.loads(result.out)
    assert "job ssh" not in result.err


@pytest.mark.parametrize("how", ["file", "text", "job file"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_private_key_is_refused_here_and_never_repeated(
    headrace: Headrace, key: Key, tmp_path: Path, how: str, dry_run: bool
) -> None:
    secret = key.private.read_text()
    job_file = tmp_path / "job.yaml"
    job_file.write_text(json.dumps({"container": {"image": "x"}, "access": {"ssh_public_key": secret}}))
    given = {
        "file": (*SUBMIT, "--ssh-key", str(key.private)),
        "text": (*SUBMIT, "--ssh-key", secret),
        "job file": ("job", "submit", str(job_file)),
    }[how]
    result = headrace(*given, *(["--dry-run"] if dry_run else []), *([] if how == "job file" else ["--", "true"]))
    assert result.code == 2
    assert "private key" in result.err
    assert not [line for line in secret.splitlines()[1:-1] if line in result.out + result.err]


@pytest.mark.parametrize("given", ["/no/such/file", "bm9zdWNoa2V5", "ssh-rsa AAAA broken"])
def test_what_is_no_key_is_not_repeated(headrace: Headrace, given: str) -> None:
    result = headrace(*SUBMIT, "--ssh-key", given, "--", "true")
    assert result.code == 2
    assert given not in result.err


def test_the_flag_lies_over_the_job_file(headrace: Headrace, key: Key, tmp_path: Path) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text("access: {ssh_public_key: other}\ncontainer: {image: x, command: ['true']}\n")
    result = headrace("job", "submit", str(job_file), "--ssh-key", str(key.public), "--dry-run")
    assert json.loads(result.out)["access"] == {"ssh_public_key": key.line}
