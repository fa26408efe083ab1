"""`headrace job ...` and `headrace accelerators` against a real API server."""

import json
import os
import threading

import pytest

from domain.states import JobState, Reason
from store.transitions import transition
from tests.cli.conftest import Headrace, Server, answering

SUBMIT = ("job", "submit", "--image", "registry.example/app:1", "--vcpus", "1")


@pytest.fixture
def job_id(headrace: Headrace, server: Server) -> str:
    result = headrace(*SUBMIT, "--name", "first", "--", "echo", "hi")
    assert result.code == 0, result.err
    return result.out.strip()


def move(server: Server, job_id: str, *states: JobState, reason: Reason | None = None) -> None:
    now = server.services.clock()
    for state in states:
        why = reason if state.terminal or state is JobState.TERMINATING else None
        server.write(lambda s, state=state, why=why: transition(s, job_id, state, f"to-{state}", now, reason=why))


def record(text: str) -> dict[str, str]:
    """The lines of `name  value` that a record is shown as."""
    return {name: value.strip() for name, value in (line.split("  ", 1) for line in text.splitlines())}


class TestSubmit:
    def test_prints_the_id_alone_to_stdout_and_the_next_step_to_stderr(self, headrace, server):
        result = headrace(*SUBMIT, "--", "echo", "hi")
        assert result.code == 0
        assert result.out.startswith("job_")
        assert len(result.out.split()) == 1
        assert f"hint: watch it: headrace job logs -f {result.out.strip()}" in result.err

    def test_from_a_file_with_flags_over_it(self, headrace, server, tmp_path):
        file = tmp_path / "job.yaml"
        file.write_text(
            "name: from-file\n"
            "compute: {accelerator: cpu-general, gpu_count: 0, vcpu_count: 1, ephemeral_disk_gb: 1}\n"
            "container: {image: 'registry.example/app:1', script: 'echo hi'}\n"
        )
        result = headrace("job", "submit", file, "--vcpus", "2", "--max-cost", "0.5", "--label", "a=b", "--json")
        job = json.loads(result.out)
        assert (job["name"], job["compute"]["vcpu_count"], job["labels"]) == ("from-file", 2, {"a": "b"})
        assert job["limits"] == {"max_cost_usd": 0.5}

    def test_a_command_after_the_file_replaces_its_script(self, headrace, tmp_path):
        file = tmp_path / "job.yaml"
        file.write_text("container: {image: x, script: 'echo hi'}\n")
        result = headrace("job", "submit", "--dry-run", file, "--", "python", "--version")
        assert json.loads(result.out)["container"] == {"image": "x", "command": ["python", "--version"]}

    def test_repeating_an_idempotency_key_gives_the_same_job(self, headrace, server):
        first, second = (headrace(*SUBMIT, "--idempotency-key", "k1", "--", "echo", "hi") for _ in range(2))
        assert first.out == second.out
        other = headrace(*SUBMIT, "--idempotency-key", "k1", "--", "echo", "ho")
        assert other.code == 11
        assert "idempotency_conflict" in other.err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("job", "submit"), "nothing to submit"),
            (("job", "submit", "--image", "x"), "nothing to run"),
            (("job", "submit", "--image", "x", "--gpus", "2", "--", "a"), "--gpus needs --accelerator"),
            (("job", "submit", "missing.yaml"), "missing.yaml does not exist"),
            (("job", "submit", "--image", "x", "--env", "A", "--", "a"), "--env wants NAME=value"),
            (("job", "submit", "--image", "x", "--script", "/gone.sh"), "/gone.sh"),
            (("job", "submit", "--gpus", "many"), "--gpus"),
        ],
    )
    def test_what_cannot_be_a_request_ends_with_the_usage_code(self, headrace, server, words, said):
        result = headrace(*words)
        assert result.code == 2
        assert said in result.err
        assert result.out == ""

    def test_a_request_that_the_server_refuses_names_the_field(self, headrace, server):
        result = headrace(*SUBMIT, "--env", "HEADRACE_X=1", "--", "a")
        assert result.code == 2
        assert "HEADRACE_X" in result.err


class TestShowing:
    def test_list_shows_the_newest_first_in_columns(self, headrace, server, job_id):
        second = headrace(*SUBMIT, "--name", "second", "--", "echo", "hi").out.strip()
        lines = headrace("job", "list").out.splitlines()
        assert lines[0].split() == ["JOB", "NAME", "STATE", "HARDWARE", "CREATED", "SPEND"]
        assert [line.split()[:3] for line in lines[1:]] == [
            [second, "second", "requested"],
            [job_id, "first", "requested"],
        ]
        assert [job["id"] for job in json.loads(headrace("job", "list", "--json", "--limit", "1").out)] == [second]

    def test_list_reads_as_many_pages_as_it_takes(self, headrace, server):
        made = {headrace(*SUBMIT, "--", "echo").out.strip() for _ in range(5)}
        listed = json.loads(headrace("job", "list", "--json", "--limit", "4").out)
        assert len(listed) == 4
        assert {job["id"] for job in listed} < made

    def test_an_empty_list_says_how_to_begin(self, headrace, server):
        result = headrace("job", "list")
        assert result.code == 0
        assert "hint: submit one" in result.err

    def test_get_shows_the_record(self, headrace, server, job_id):
        shown = record(headrace("job", "get", job_id).out)
        assert (shown["job"], shown["state"], shown["hardware"]) == (job_id, "requested", "cpu-general, 1 vCPU")

    def test_events_show_type_and_details(self, headrace, server, job_id):
        move(server, job_id, JobState.ALLOCATING)
        out = headrace("job", "events", job_id).out
        assert "job_created" in out
        assert "from=requested, to=allocating" in out
        assert headrace("job", "instances", job_id).code == 0

    def test_a_long_detail_cuts_no_other_column(self, headrace, server, job_id):
        move(server, job_id, JobState.ALLOCATING)
        end, now = {"reason": Reason.PROVIDER_ERROR, "message": "x" * 500}, server.services.clock()
        server.write(lambda s: transition(s, job_id, JobState.FAILED, "end", now, **end))
        lines = headrace("job", "events", job_id).out.splitlines()
        assert lines[1].split()[2] == "job_created"
        assert "x" * 500 in lines[-1]

    def test_a_name_that_would_move_the_cursor_is_shown_harmlessly(self, headrace, server):
        headrace(*SUBMIT, "--name", "a\x1b[2Jb", "--", "echo")
        assert "\x1b" not in headrace("job", "list").out

    def test_accelerators_show_what_may_be_asked_of_each(self, headrace, server):
        out = headrace("accelerators").out
        assert "nvidia-h100-80gb" in out
        assert "1-128 vCPUs, 4 GB each" in out
        assert "amd-" not in headrace("accelerators", "--vendor", "nvidia").out
        assert json.loads(headrace("accelerators", "cpu-general", "--json").out)["hardware_class"] == "cpu"
        assert headrace("accelerators", "nvidia-none").code == 5


class TestLogs:
    def append(self, server: Server, job_id: str, *messages: str) -> None:
        now = server.services.clock()
        server.write(lambda session: server.services.logs.append_system(session, job_id, messages, now))

    def test_prints_the_lines_and_marks_those_of_the_system(self, headrace, server, job_id):
        self.append(server, job_id, "allocated", "pulled")
        result = headrace("job", "logs", job_id)
        assert result.out.splitlines()[-2:] == ["[system] allocated", "[system] pulled"]
        as_json = [json.loads(line) for line in headrace("job", "logs", job_id, "--json").out.splitlines()]
        assert as_json[-1]["message"] == "pulled"
        assert headrace("job", "logs", job_id, "--source", "user").out == ""

    def test_follows_until_the_job_has_ended_and_shows_each_line_once(self, headrace, server, job_id):
        self.append(server, job_id, *(f"line {n}" for n in range(1200)))

        def finish() -> None:
            move(server, job_id, JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING)
            self.append(server, job_id, "late 1", "late 2")
            move(server, job_id, JobState.FINALIZING)
            self.append(server, job_id, "last")
            move(server, job_id, JobState.SUCCEEDED)

        rest = threading.Thread(target=finish)
        rest.start()
        result = headrace("job", "logs", "-f", job_id)
        rest.join()
        wanted = [f"line {n}" for n in range(1200)] + ["late 1", "late 2", "last"]
        assert [line.removeprefix("[system] ") for line in result.out.splitlines()] == wanted
        assert f"{job_id} is succeeded" in result.err


class TestEnding:
    def test_terminate_may_be_repeated(self, headrace, server, job_id):
        for _ in range(2):
            result = headrace("job", "terminate", job_id)
            assert result.code == 0
            assert "terminating" in result.out

    @pytest.mark.parametrize(
        ("states", "reason", "code"),
        [
            ((JobState.FINALIZING, JobState.SUCCEEDED), None, 0),
            ((JobState.FAILED,), Reason.WORKLOAD_EXIT_NONZERO, 1),
            ((JobState.TERMINATING, JobState.TERMINATED), Reason.USER_REQUESTED, 6),
            ((JobState.TERMINATING, JobState.TERMINATED), Reason.MAX_RUNTIME_EXCEEDED, 7),
            ((JobState.TERMINATING, JobState.TERMINATED), Reason.MAX_COST_EXCEEDED, 8),
            ((JobState.FAILED,), Reason.CAPACITY_UNAVAILABLE, 9),
            ((JobState.FAILED,), Reason.IMAGE_PULL_FAILED, 10),
        ],
    )
    def test_wait_ends_with_the_class_of_the_job(self, headrace, server, job_id, states, reason, code):
        move(server, job_id, JobState.ALLOCATING, JobState.PROVISIONING, JobState.RUNNING, *states, reason=reason)
        result = headrace("job", "wait", job_id)
        assert result.code == code
        assert record(result.out)["state"] == states[-1].value

    def test_wait_gives_up_after_its_timeout_and_says_that_the_job_goes_on(self, headrace, server, job_id):
        result = headrace("job", "wait", job_id, "--timeout", "0.2")
        assert result.code == 124
        assert "still requested" in result.err

    def test_submit_and_wait_ends_with_the_class_of_the_job(self, headrace, server):
        def fail_the_only_job() -> None:
            while not (jobs := server.services.db.run_read(_job_ids)):
                pass
            move(server, jobs[0], JobState.FAILED, reason=Reason.CAPACITY_UNAVAILABLE)

        other = threading.Thread(target=fail_the_only_job)
        other.start()
        result = headrace(*SUBMIT, "--wait", "--", "echo")
        other.join()
        assert result.code == 9


def _job_ids(session):
    from sqlmodel import select

    from store.tables import Job

    return session.exec(select(Job.id)).all()


class TestErrors:
    def test_without_credentials_it_is_said_how_to_get_some(self, headrace, tmp_path):
        result = headrace("job", "list")
        assert result.code == 4
        assert f"{tmp_path / 'no-stack-here' / 'credentials.json'} does not exist" in result.err
        assert "hint: `headrace up` starts a stack" in result.err

    def test_a_server_that_is_not_running_leads_to_headrace_up(self, headrace, tmp_path):
        file = tmp_path / "credentials.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"api_url": "http://127.0.0.1:9", "api_key": "hr_x"}))
        result = headrace("job", "list", "--data-dir", tmp_path)
        assert result.code == 3
        assert f"headrace up --data-dir {tmp_path}" in result.err

    def test_a_wrong_key_leads_to_the_file_that_holds_the_right_one(self, headrace, server, monkeypatch, tmp_path):
        monkeypatch.setenv("HEADRACE_API_KEY", "hr_wrong")
        result = headrace("job", "list")
        assert result.code == 4
        assert str(tmp_path / "no-stack-here" / "credentials.json") in result.err
        assert "hr_wrong" not in result.err

    def test_a_key_that_others_can_read_is_not_used(self, headrace, tmp_path):
        file = tmp_path / "credentials.json"
        file.write_text(json.dumps({"api_url": "http://127.0.0.1:9", "api_key": "hr_x"}))
        file.chmod(0o644)
        result = headrace("job", "list", "--data-dir", tmp_path)
        assert result.code == 4
        assert f"chmod 600 {file}" in result.err

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"api_url": 5, "api_key": "x"}', "\x00"])
    def test_damaged_credentials_are_said_to_be_so(self, headrace, tmp_path, content):
        file = tmp_path / "credentials.json"
        file.touch(mode=0o600)
        file.write_text(content)
        result = headrace("job", "list", "--data-dir", tmp_path)
        assert result.code == 4
        assert "cannot be read" in result.err

    def test_one_variable_without_the_other_is_refused(self, headrace, monkeypatch):
        monkeypatch.setenv("HEADRACE_API_URL", "http://127.0.0.1:9")
        result = headrace("job", "list")
        assert result.code == 4
        assert "HEADRACE_API_KEY is not set" in result.err

    def test_an_address_without_a_scheme_is_said_to_lack_it(self, headrace, monkeypatch):
        monkeypatch.setenv("HEADRACE_API_URL", "127.0.0.1:8080")
        monkeypatch.setenv("HEADRACE_API_KEY", "hr_x")
        result = headrace("job", "list")
        assert result.code == 4
        assert "must begin with http:// or https://" in result.err

    def test_an_address_may_have_the_path_of_the_api(self, headrace, server, monkeypatch):
        monkeypatch.setenv("HEADRACE_API_URL", f"{os.environ['HEADRACE_API_URL']}/api/v1/compute/")
        assert headrace("job", "list").code == 0

    def test_an_unknown_accelerator_leads_to_the_list(self, headrace, server):
        for words in ((*SUBMIT, "--accelerator", "h100", "--", "a"), ("accelerators", "h100")):
            assert "hint: `headrace accelerators` lists the names" in headrace(*words).err

    def test_an_unknown_job_is_not_found_and_a_hostile_id_is_not_sent(self, headrace, server):
        assert headrace("job", "get", "job_0000000000000000").code == 5
        assert headrace("job", "get", "../../secrets").code == 2

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [
            (502, b"<html>Bad Gateway</html>", 3),
            (200, b"<html>hello</html>", 3),
            (503, b'{"error": {"code": "unavailable", "message": "later", "request_id": "r1"}}', 11),
            (429, b'{"error": {"code": "too_many", "message": "slow down", "request_id": "r1"}}', 11),
            (403, b'{"error": {"code": "forbidden", "message": "no", "request_id": "r1"}}', 4),
            (500, b'{"error": 5}', 3),
        ],
    )
    def test_other_answers_become_one_line_and_a_code(self, headrace, monkeypatch, status, body, code):
        with answering(status, body) as url:
            monkeypatch.setenv("HEADRACE_API_URL", url)
            monkeypatch.setenv("HEADRACE_API_KEY", "hr_x")
            result = headrace("job", "list")
        assert result.code == code
        assert result.err.startswith("error: ")
        assert "Traceback" not in result.err

    @pytest.mark.parametrize(
        ("url", "key"), [("http://[", "hr_x"), ("nonsense", "hr_x"), ("http://127.0.0.1:9", "ü\n")]
    )
    def test_a_malformed_address_or_key_is_no_crash(self, headrace, monkeypatch, url, key):
        monkeypatch.setenv("HEADRACE_API_URL", url)
        monkeypatch.setenv("HEADRACE_API_KEY", key)
        result = headrace("job", "list")
        assert result.code in {3, 4}
        assert result.err.startswith("error: ")


class TestViewers:
    def test_a_key_that_may_only_read_may_not_submit(self, headrace, server, monkeypatch):
        from domain.roles import Role
        from store import access

        def viewer(session):
            principal = access.authenticate(session, server.token, server.services.clock())
            return access.create_key(session, principal.org_id, "eve", Role.VIEWER, server.services.clock())

        monkeypatch.setenv("HEADRACE_API_KEY", server.write(viewer).token)
        assert headrace("job", "list").code == 0
        assert headrace(*SUBMIT, "--", "echo").code == 4
