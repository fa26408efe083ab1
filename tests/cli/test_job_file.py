"""Job files and flags become the body of a create request."""

import base64
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from commands.exits import CommandError, ExitCode
from commands.job_file import merge, parse_assignments, parse_job, read_job_file


def parse(text: str, directory: Path = Path("/nowhere")) -> dict:
    return parse_job(text, name="job.yaml", directory=directory)


class TestText:
    def test_env_values_that_yaml_reads_as_other_types_stay_the_text_that_was_written(self):
        body = parse("container:\n  env:\n    A: NO\n    B: 1.10\n    C: 0123\n    D: ~\n    E: 2026-01-02\n    5: x\n")
        assert body["container"]["env"] == {
            "A": "NO",
            "B": "1.10",
            "C": "0123",
            "D": "~",
            "E": "2026-01-02",
            "5": "x",
        }

    def test_command_words_and_labels_stay_text_while_numbers_elsewhere_are_numbers(self):
        body = parse("labels: {on: yes}\ncontainer: {command: [sleep, 010]}\ncompute: {gpu_count: 2}")
        assert body == {
            "labels": {"on": "yes"},
            "container": {"command": ["sleep", "010"]},
            "compute": {"gpu_count": 2},
        }

    @given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True), st.text(), max_size=5))
    def test_any_text_that_yaml_wrote_is_read_back(self, env):
        body = parse(yaml.safe_dump({"container": {"env": env}}))
        assert body["container"]["env"] == env


class TestScripts:
    def test_a_script_becomes_its_base64_form(self):
        body = parse("container:\n  image: x\n  script: |\n    echo hi\n    exit 3\n")
        assert base64.b64decode(body["container"]["script_b64"]) == b"echo hi\nexit 3\n"
        assert "script" not in body["container"]

    def test_a_script_file_is_looked_for_beside_the_job_file(self, tmp_path):
        (tmp_path / "run.sh").write_bytes(b"echo \xff\n")
        (tmp_path / "job.yaml").write_text("container: {script_file: run.sh}")
        body = read_job_file(tmp_path / "job.yaml")
        assert base64.b64decode(body["container"]["script_b64"]) == b"echo \xff\n"

    def test_a_missing_script_file_is_named(self, tmp_path):
        with pytest.raises(CommandError, match=r"gone\.sh"):
            parse("container: {script_file: gone.sh}", tmp_path)

    def test_two_ways_to_say_what_runs_are_refused(self):
        with pytest.raises(CommandError, match="command and script"):
            parse("container: {command: [x], script: y}")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "empty"),
            ("[1, 2]", "mapping"),
            ("container: {env: {A: 1, A: 2}}", "'A' is there twice"),
            ("name: a\nname: b\n", "line 2: 'name' is there twice"),
            ("container: [unclosed", "line 1"),
            ("a: *nothing", "nothing"),
            ("a: !!python/object/apply:os.system [id]", "constructor"),
            ("when: 2026-13-45", "month"),
            ("container: {script: 5}", "text of a bash script"),
            ("container: {command: echo hi}", "list of words"),
            ("a: " + "[" * 5000, "nested too deeply"),
        ],
    )
    def test_what_is_wrong_is_said_with_the_usage_code(self, text, said):
        with pytest.raises(CommandError, match=said) as caught:
            parse(text)
        assert caught.value.code is ExitCode.USAGE

    def test_a_file_that_is_not_there_or_not_text_is_named(self, tmp_path):
        (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        for name in ("missing.yaml", "binary.yaml"):
            with pytest.raises(CommandError, match=name):
                read_job_file(tmp_path / name)


class TestFlags:
    def test_a_value_may_hold_equal_signs_and_be_empty(self):
        assert parse_assignments(["A=b=c", "B="], "--env") == {"A": "b=c", "B": ""}

    @pytest.mark.parametrize("pairs", [["A"], ["=x"], ["A=1", "A=2"]])
    def test_what_is_no_assignment_or_repeated_is_refused(self, pairs):
        with pytest.raises(CommandError):
            parse_assignments(pairs, "--env")

    def test_flags_lie_over_the_file_and_mappings_are_joined(self):
        body = {"name": "a", "container": {"env": {"A": "1", "B": "1"}}}
        merge(body, {("name",): "b", ("container", "env"): {"B": "2"}, ("limits", "max_cost_usd"): 5.0, ("x",): None})
        assert body == {"name": "b", "container": {"env": {"A": "1", "B": "2"}}, "limits": {"max_cost_usd": 5.0}}

    def test_a_flag_under_something_that_is_no_mapping_is_refused(self):
        with pytest.raises(CommandError, match="compute"):
            merge({"compute": 5}, {("compute", "gpu_count"): 1})
