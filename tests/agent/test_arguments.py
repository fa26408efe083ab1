"""Arguments, environment and scripts reach the process exactly as they were given."""

import hashlib
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.launch_spec import LaunchSpec, render
from domain.spec import Workload
from tests.agent.site import Site

HARD = st.sampled_from(
    ["'", '"', ";", "$", "`", "\n", "=", "-", "\\", "😀", "é", "\x01", "\x7f", "$(x)", "*", "~", " "]
)
TEXT = st.lists(st.one_of(HARD, st.characters(codec="utf-8", exclude_characters="\0")), max_size=12).map("".join)
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
# Names that bash treats in its own ways, and one that it cannot spell.
ODD_NAMES = ["UID", "IFS", "RANDOM", "SECONDS", "BASH_ENV", "PWD", "hr_argv", "LC_ALL", "with.dot", "POSIXLY_CORRECT"]
NAMES = st.one_of(st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True), st.sampled_from(ODD_NAMES))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(TEXT, max_size=6), environment=st.dictionaries(NAMES, TEXT, max_size=8))
async def test_any_arguments_and_environment_are_what_the_process_sees(
    site: Site, arguments: list[str], environment: dict[str, str]
) -> None:
    python = {"PYTHONUTF8", "PYTHONHOME", "PYTHONPATH", "PATH", "LD_PRELOAD", "LD_LIBRARY_PATH"}
    environment = {name: value for name, value in environment.items() if name not in python}
    workload = Workload(argv=(sys.executable, "-X", "utf8", "-c", SHOW, *arguments), env=environment)
    attempt = await site.launch(workload)
    assert await attempt.result() == (0, 0), attempt.output("stderr")
    seen_arguments, seen_environment = json.loads(attempt.output())
    assert seen_arguments == arguments
    assert {name: seen_environment.get(name) for name in environment} == environment


async def test_the_images_environment_is_inherited_and_the_agents_is_not(site: Site) -> None:
    image = {"FROM_IMAGE": "1", "LC_ALL": "C.UTF-8", "hr_dir": "theirs", "HEADRACE_IDLE_AFTER_EXIT": "0"}
    attempt = await site.launch(Workload(argv=(sys.executable, "-c", SHOW), env={"MINE": "2"}), environment=image)
    assert await attempt.result() == (0, 0)
    _, seen = json.loads(attempt.output())
    assert (seen["FROM_IMAGE"], seen["LC_ALL"], seen["MINE"]) == ("1", "C.UTF-8", "2")
    assert seen["HF_ENDPOINT"] == site.settings.hf_endpoint
    assert (seen["HEADRACE_JOB_ID"], seen["HEADRACE_INSTANCE_ID"]) == (attempt.job.id, attempt.instance.id)
    ours = {"HEADRACE_JOB_ID", "HEADRACE_INSTANCE_ID", "hr_dir"}
    assert not [name for name in seen if name.startswith(("HEADRACE_", "hr_")) and name not in ours]


async def test_a_workload_has_no_input_and_no_descriptor_of_the_agents(site: Site) -> None:
    attempt = await site.script_job("cat; ls /proc/self/fd | tr '\\n' ' '")
    assert await attempt.result() == (0, 0)
    # The last one is the directory that ls reads.
    assert attempt.output() == b"0 1 2 3 "


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("#!/usr/bin/env python3\nprint('py', __import__('sys').argv[1:])\n", b"py []\n"),
        ('#!/usr/bin/awk -f\nBEGIN { print "awk" }\n', b"awk\n"),
        ("#! /bin/cat\nshown", b"#! /bin/cat\nshown"),
        ("#!\necho bash", b"bash\n"),
        ("echo no newline at the end", b"no newline at the end\n"),
        ("cat <<'END'\n$not expanded `x`\nEND\n", b"$not expanded `x`\n"),
        ("echo $0 | sed 's=.*/=='", b"script\n"),
    ],
)
async def test_a_script_runs_under_its_shebang_and_else_under_bash(site: Site, script: str, output: bytes) -> None:
    attempt = await site.script_job(script)
    assert await attempt.result() == (0, 0), attempt.output("stderr")
    assert attempt.output() == output


@pytest.mark.parametrize("size", [1 << 10, 131_071, 131_072, 1 << 20, 5 << 20])
async def test_a_script_of_any_allowed_size_is_the_same_inside(site: Site, size: int) -> None:
    script = "sha256sum <$0 | cut -c 1-64; exit\n"
    script += "#" * (size - len(script))
    attempt = await site.script_job(script)
    assert await attempt.result() == (0, 0)
    assert attempt.output().decode().strip() == hashlib.sha256(script.encode()).hexdigest()


@pytest.mark.parametrize("size", [1 << 10, 131_071 - len("BIG=")])
async def test_an_environment_value_of_the_largest_size_is_the_same_inside(site: Site, size: int) -> None:
    value = "é'" + "v" * (size - 3)
    workload = Workload(argv=("bash", "-c", 'printf %s "$BIG" | sha256sum'), env={"BIG": value})
    attempt = await site.launch(workload)
    assert await attempt.result() == (0, 0), attempt.output("stderr")
    assert attempt.output().decode().split()[0] == hashlib.sha256(value.encode()).hexdigest()


async def test_a_whole_mebibyte_of_environment_fits(site: Site) -> None:
    environment = {f"V{number}": "x" * 100_000 for number in range(10)}
    attempt = await site.launch(Workload(argv=("bash", "-c", "env | wc -c"), env=environment))
    assert await attempt.result() == (0, 0), attempt.output("stderr")
    assert int(attempt.output()) > 1_000_000


def test_nul_is_refused_where_the_spec_is_rendered() -> None:
    spec = LaunchSpec("token", Workload(argv=("a\0b",)), {}, 1 << 20, 30)
    with pytest.raises(ValueError, match="NUL"):
        render(spec)


def test_resolved_secrets_are_exported_and_win_over_the_users_environment() -> None:
    workload = Workload(argv=("true",), env={"A": "1", "B": "2"})
    fragment = render(LaunchSpec("token", workload, {"C": "3"}, 1 << 20, 30, secrets={"B": "s3cret"})).decode()
    assert "export B='s3cret'" in fragment
    assert "export B='2'" not in fragment
