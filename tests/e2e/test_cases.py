"""One end-to-end test for each of the cases 12, 13, 15 and 17 to 21: the public API, real containers, PostgreSQL."""

import base64
import hashlib
import random
import time
from collections.abc import Iterator

import pytest

from tests.e2e.jobs import assert_clean, assert_counted, counting
from tests.support.postgres import TestServer
from tests.support.stack import Stack, job_body, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.containers, pytest.mark.postgres, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(host_image: str, postgres_server: TestServer) -> Iterator[Stack]:
    url = postgres_server.create(empty=True)
    with running_stack("podman", HEADRACE_DATABASE_URL=url) as stack:
        yield stack
        assert stack.workloads() == []
    postgres_server.give_back(url)


def encoded(script: str | bytes) -> dict[str, str]:
    """The part of a container that runs this script."""
    return {"script_b64": base64.b64encode(script.encode() if isinstance(script, str) else script).decode()}


@pytest.mark.parametrize(
    ("script", "exit_code", "stdout", "stderr"),
    [
        ("printf 'a\\nb'; exit 1", 1, ["a", "b"], []),
        ("printf x", 0, ["x"], []),
        ("printf 'only stderr' >&2; exit 2", 2, [], ["only stderr"]),
    ],
)
def test_the_last_bytes_before_an_exit_are_stored(
    stack: Stack, script: str, exit_code: int, stdout: list[str], stderr: list[str]
) -> None:
    """Case 12, several times at once."""
    jobs = [stack.script(script) for _ in range(4)]
    for job_id in jobs:
        assert stack.until_terminal(job_id)["exit_code"] == exit_code
        assert (stack.output(job_id), stack.output(job_id, "stderr")) == (stdout, stderr)
    assert_clean(stack, jobs)


def test_ten_mebibytes_without_a_newline_neither_hold_the_job_nor_hide_what_follows(stack: Stack) -> None:
    """Case 13."""
    job_id = stack.script("head -c 10485760 /dev/zero | tr '\\0' x; echo; echo a normal line; exit 7")
    job = stack.until_terminal(job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 7)
    assert stack.output(job_id) == ["x" * 10485760, "a normal line"]


def test_a_nul_and_random_bytes_cost_no_other_line(stack: Stack) -> None:
    """Case 15."""
    job_id = stack.script(
        "seq 1 500; printf 'a\\0b\\n'; seq 501 1000; head -c 1048576 /dev/urandom >&2; printf '\\nlast\\n' >&2"
    )
    assert stack.until_terminal(job_id)["state"] == "succeeded"
    numbers = [str(i) for i in range(1, 1001)]
    assert stack.output(job_id) == [*numbers[:500], "a\ufffdb", *numbers[500:]]
    assert stack.output(job_id, "stderr")[-1] == "last"
    query = "SELECT acked_offset FROM logstream WHERE job_id = :id AND stream = 'stderr'"
    assert stack.rows(query, id=job_id) == [(1048576 + 6,)]


@pytest.mark.parametrize(
    ("container", "fields", "field"),
    [
        ({}, {"name": "a\0b"}, "name"),
        ({"env": {"X": "a\0b"}}, {}, "container.env"),
        ({"command": ["echo", "a\0b"]}, {}, "container.command"),
        (encoded("echo a\0b"), {}, "container.script_b64"),
    ],
    ids=["name", "env", "command", "script"],
)
def test_a_nul_in_a_request_is_refused(
    stack: Stack, container: dict[str, object], fields: dict[str, str], field: str
) -> None:
    command = None if "script_b64" in container else ["true"]
    answer = stack.post(job_body(command, container, **fields))
    assert answer.status_code == 422
    assert answer.json()["error"]["details"]["field"].startswith(field)


def test_an_api_that_dies_again_and_again_during_the_output_costs_no_byte(stack: Stack) -> None:
    """Case 17: whatever was on its way when the connection broke comes once, in order."""
    lines = 20_000
    flood = stack.script(f"for i in $(seq 1 {lines}); do echo out $i; echo err $i >&2; done; sleep 1")
    slow = stack.script(counting(200, 12))
    for job_id in (flood, slow):
        stack.until_state(job_id, "running", "finalizing", "succeeded")
    for number in range(3):
        time.sleep(random.Random(number).uniform(0.05, 0.5))
        stack.kill("api")
        stack.pid("api")
        stack.until_ready()
    for job_id, count in ((flood, lines), (slow, 200)):
        assert stack.until_terminal(job_id)["state"] == "succeeded"
        assert_counted(stack, job_id, count)
    assert_clean(stack, [flood, slow])


@pytest.mark.parametrize(
    ("script", "stdout"),
    [
        ("\ufeff#!/bin/bash\r\nprintf '%s|' one\r\ncat <<'END'\r\ntwo\r\nEND\r\nprintf three", ["one|two", "three"]),
        ("cat <<'END'\nno final newline\nEND", ["no final newline"]),
        ("printf %s \"$DATA\" | od -An -tx1 | tr -d ' \\n'", ["efbbbf610d0a62"]),
    ],
    ids=["bom-and-crlf", "heredoc", "data-is-kept"],
)
def test_a_script_is_normalised_and_data_is_not(stack: Stack, script: str, stdout: list[str]) -> None:
    """Case 18."""
    job_id = stack.create(container={**encoded(script), "env": {"DATA": "\ufeffa\r\nb"}})
    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert stack.output(job_id) == stdout


def test_exit_codes_are_exact(stack: Stack) -> None:
    """Case 19."""
    wanted = {
        "false | cat": 0,
        "set -o pipefail; false | cat": 1,
        "exit 256": 0,
        "trap 'exit 0' EXIT; false": 0,
        "exec false": 1,
        "sleep 600 & exit 4": 4,
        "kill -TERM $$": 143,
        "exit 143": 143,
        "no-such-command": 127,
    }
    jobs = {script: stack.create(container=encoded(script)) for script in wanted}
    ends = {script: stack.until_terminal(job_id) for script, job_id in jobs.items()}
    assert {script: job["exit_code"] for script, job in ends.items()} == wanted
    assert ends["kill -TERM $$"]["reason"]["code"] == "workload_signaled"
    assert ends["exit 143"]["reason"]["code"] == "workload_exit_nonzero"
    assert_clean(stack, list(jobs.values()))


SIZES = [1024, 131_071, 131_072, 1024 * 1024, 5 * 1024 * 1024, 5 * 1024 * 1024 + 1]


@pytest.mark.parametrize("size", SIZES)
def test_a_script_of_any_size_arrives_whole_or_is_refused(stack: Stack, size: int) -> None:
    """Case 20: a script of exactly `size` bytes that hashes most of itself."""
    head, tail = b"sha256sum <<'END'\n", b"\nEND\n"
    payload = random.Random(size).randbytes(size).hex().encode()[: size - len(head) - len(tail)]
    digest = hashlib.sha256(payload + b"\n").hexdigest()
    answer = stack.post(job_body(None, encoded(head + payload + tail)))
    if size > 5 * 1024 * 1024:
        assert answer.status_code == 422
        assert answer.json()["error"]["details"] == {"field": "container.script_b64", "limit": 5 * 1024 * 1024}
        return
    assert answer.status_code == 201, answer.text[:500]
    job_id = answer.json()["id"]
    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert stack.output(job_id) == [f"{digest}  -"]


@pytest.mark.parametrize("size", [1024, 131_071, 131_072])
def test_an_environment_value_of_any_size_arrives_whole_or_is_refused(stack: Stack, size: int) -> None:
    """Case 20: `size` bytes of `NAME=value`."""
    value = random.Random(size).randbytes(size).hex()[: size - len("BIG=")]
    body = job_body(["bash", "-c", 'printf %s "$BIG" | sha256sum'], {"env": {"BIG": value}})
    answer = stack.post(body)
    if size > 131_071:
        assert answer.status_code == 422
        details = answer.json()["error"]["details"]
        assert (details["field"], details["limit"]) == ("container.env.BIG", 131_071)
        return
    job_id = answer.json()["id"]
    assert stack.until_terminal(job_id)["state"] == "succeeded"
    assert stack.output(job_id) == [f"{hashlib.sha256(value.encode()).hexdigest()}  -"]


AWKWARD = ["'", '"', ";", "$", "`", "\n", "=", "-", "\\", "😀", "é", "$(id)", "*", "~", " ", "%s", "\t", "\x01"]


def test_arguments_and_environment_are_exactly_those_that_were_asked_for(stack: Stack) -> None:
    """Case 21."""
    show = 'printf "%s\\0" "$@" | base64 -w0; echo; for n in E0 E1 E2; do printf "%s\\0" "${!n}"; done | base64 -w0'
    wanted = {}
    for number in range(5):
        source = random.Random(number)
        words = ["".join(source.choices(AWKWARD, k=source.randrange(8))) for _ in range(8)]
        arguments = ["", "-n", "--", "-e", *words]
        environment = {f"E{i}": "".join(source.choices(AWKWARD, k=6)) for i in range(3)}
        job_id = stack.create(["bash", "-c", show, "x", *arguments], container={"env": environment})
        wanted[job_id] = [arguments, list(environment.values())]
    for job_id, (arguments, values) in wanted.items():
        assert stack.until_terminal(job_id)["state"] == "succeeded"
        printed = [base64.b64decode(line).decode() for line in stack.output(job_id)]
        assert [text.split("\0")[:-1] for text in printed] == [arguments, values]
