"""`headrace job ssh`: what it gives to ssh, and what it says where there is no SSH."""

import json
import os
from pathlib import Path

import pytest
from sqlmodel import Session, col, select

from domain.states import InstanceState, JobState
from store.tables import Instance, Job
from tests.cli.conftest import Headrace, Server
from tests.cli.test_job_commands import SUBMIT, move
from tests.support.factory import Factory

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPXjAT7RzM2DvV7JhV8CmgGFVR4mdxpKk6h2pCuVtuSF"
LINE = f"[203.0.113.7]:22022 {KEY}"


@pytest.fixture
def job_id(headrace: Headrace, server: Server) -> str:
    """A running job with SSH."""
    job_id = headrace(*SUBMIT, "--", "true").out.strip()
    move(server, job_id, JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING)
    entry = {"name": "ssh", "protocol": "ssh", "host": "203.0.113.7", "port": 22022, "user": "root"}
    factory = Factory(server.services.db, server.services.clock, server.services.vault)
    job = server.services.db.run_read(lambda s: s.get_one(Job, job_id))
    instance = factory.instance(
        job, InstanceState.RUNNING, allocated_at=server.services.clock(), endpoints=[entry], ssh_host_key=KEY
    )
    factory.price(instance, "0.44")
    return job_id


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which a stand-in for ssh notes its arguments and what it would trust."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" >"${0%/*}/argv"\n'
        'for word; do [[ $word != UserKnownHostsFile=* ]] || cat "${word#*=}" >"${0%/*}/known"; done\nexit 7\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return program.parent


def test_ssh_is_run_with_the_jobs_host_key_alone_and_its_exit_code_passed_on(
    headrace: Headrace, job_id: str, client: Path
) -> None:
    result = headrace("job", "ssh", job_id, "-i", "/keys/mine", "--", "echo", "a b")
    assert result.code == 7
    words = (client / "argv").read_text().splitlines()
    assert words[:4] == ["-p", "22022", "-i", "/keys/mine"]
    assert "StrictHostKeyChecking=yes" in words
    assert words[-3:] == ["--", "root@203.0.113.7", "echo 'a b'"]
    assert (client / "known").read_text() == f"{LINE}\n"


def test_print_says_the_command_and_runs_nothing(headrace: Headrace, job_id: str, client: Path) -> None:
    result = headrace("job", "ssh", job_id, "--print", "--", "nvidia-smi | head")
    assert result.out == "ssh -p 22022 -- root@203.0.113.7 'nvidia-smi | head'\n"
    assert LINE in result.err
    assert not (client / "argv").exists()


def test_the_jobs_record_says_how_to_enter(headrace: Headrace, job_id: str) -> None:
    assert "ssh -p 22022 root@203.0.113.7" in headrace("job", "get", job_id).out
    assert json.loads(headrace("job", "get", job_id, "--json").out)["ssh"]["host_key"] == KEY


def test_machines_get_all_of_it(headrace: Headrace, job_id: str) -> None:
    shown = json.loads(headrace("job", "ssh", job_id, "--json").out)
    assert (shown["host"], shown["port"], shown["known_hosts"]) == ("203.0.113.7", 22022, LINE)


def test_a_job_without_ssh_says_when_there_would_be_one(headrace: Headrace, server: Server, job_id: str) -> None:
    def forget(session: Session) -> None:
        row = session.exec(select(Instance).where(col(Instance.job_id) == job_id)).one()
        row.ssh_host_key = None
        session.add(row)

    server.write(forget)
    result = headrace("job", "ssh", job_id)
    assert result.code == 5
    assert "has no SSH" in result.err
    assert "access.ssh_public_key" in result.err
    assert headrace("job", "ssh", "job_unknown").code == 5
