"""`headrace replay --file` on recorded histories, whole and with a step that the code does not take."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Headrace

HISTORIES = Path(__file__).parents[1] / "histories"


@pytest.fixture(autouse=True)
def _their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MASTER_KEY_FILE", str(HISTORIES / "key.txt"))


def test_a_recorded_history_replays_cleanly(headrace: Headrace):
    result = headrace("replay", "--file", HISTORIES / "succeeded.json")
    assert result.code == 0, result.err
    assert result.out.startswith("succeeded: ")
    assert result.out.endswith("events, replays cleanly\n")


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_history_that_does_not_fit_is_told_with_its_first_event_and_nothing_else_on_stdout(headrace, tmp_path, which):
    content = json.loads((HISTORIES / "succeeded.json").read_text())
    scheduled = [event for event in content["events"] if "activityTaskScheduledEventAttributes" in event][which]
    scheduled["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "an_older_activity"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(content))
    result = headrace("replay", "--file", file, "--json")
    assert result.code == 13
    outcome = json.loads(result.out)
    assert (outcome["ok"], outcome["event"]) == (False, int(scheduled["eventId"]))
    assert "an_older_activity" in outcome["failure"]
    for_people = headrace("replay", "--file", file)
    assert f"fails at event {scheduled['eventId']}: " in for_people.out
    assert "hint: " in for_people.err


def test_another_key_than_that_of_the_history_is_no_non_determinism_of_the_code(headrace, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_MASTER_KEY_FILE", str(tmp_path / "gone"))
    result = headrace("replay", "--file", HISTORIES / "succeeded.json")
    assert result.code == 2
    assert "HEADRACE_MASTER_KEY_FILE" in result.err


@pytest.mark.parametrize(
    "content", ["", "{}{", "[]", '{"events": 5}', '{"events": []}', '{"events": [{"eventId": "1"}]}']
)
def test_what_is_no_history_is_said_to_be_none(headrace, tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    result = headrace("replay", "--file", tmp_path / "bad.json")
    assert result.code == 2
    assert "is not an exported history" in result.err


def test_a_job_or_a_file_is_needed_and_not_both(headrace, tmp_path):
    assert headrace("replay").code == 2
    assert headrace("replay", "job_0000000000000000", "--file", tmp_path / "x.json").code == 2
    assert headrace("replay", "--file", tmp_path / "gone.json").code == 2
