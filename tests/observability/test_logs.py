"""No credential in a log line, and nothing else lost."""

import base64
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ids import AttemptId, new_token
from observability.logs import redact
from store.access import KEY_PREFIX
from store.vault import Vault

VAULT = Vault.parse(Vault.generate())
ATTEMPT = AttemptId("inst-abcdefghij234567klmn")
BASIC = base64.b64encode(b"user:password").decode()


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (KEY_PREFIX + new_token(), "hr_***"),
        (VAULT.bootstrap_token(ATTEMPT), "hrb.***"),
        (VAULT.session_token(ATTEMPT, "0" * 32), "hrs.***"),
        (Vault.generate(), ":***"),
        (f"Basic {BASIC}", "Basic ***"),
        ("Bearer abcdef0123456789", "Bearer ***"),
    ],
    ids=["api key", "bootstrap token", "session token", "master key", "basic", "bearer"],
)
def test_a_credential_is_masked_wherever_it_stands(secret: str, shown: str) -> None:
    for line in (secret, f'{{"event":"x","header":"{secret}"}}', f"({secret})", f"failed: {secret}\n  at line 1"):
        assert secret not in redact(line)
        assert shown in redact(line)


def test_the_password_of_a_url_is_masked_and_its_host_is_kept() -> None:
    line = redact('cannot reach "postgresql://headrace:p4ss-word@db.internal:5432/headrace"')
    assert line == 'cannot reach "postgresql://headrace:***@db.internal:5432/headrace"'


@given(st.binary(min_size=32, max_size=32))
def test_every_api_key_is_masked(random: bytes) -> None:
    key = KEY_PREFIX + base64.urlsafe_b64encode(random).decode().rstrip("=")
    assert redact(f"key {key}.") == "key hr_***."


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"hr_manager joined","hr_role":"x"}',
        "http://127.0.0.1:8080/api/v1/compute/jobs/job_0123456789abcdef",
        "see https://example.org:443/a@b",
        f"attempt {ATTEMPT} took 12:34:56",
        os.fspath("/var/lib/headrace/master.key"),
    ],
)
def test_what_is_no_credential_stays(line: str) -> None:
    assert redact(line) == line


def test_a_line_that_cannot_be_written_ends_nothing() -> None:
    program = """
import logging, structlog
from observability.logs import configure
configure("json", "info")
for _ in range(3):
    structlog.get_logger("x").info("said")
    logging.getLogger("y").warning("said")
print("went on")
"""
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert ended.stdout == b"went on\n"
