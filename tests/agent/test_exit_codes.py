"""How a workload ended is told exactly: status and signal, whatever it left behind."""

from pathlib import Path

import psutil
import pytest

from tests.agent.site import Site

SCRIPTS = [
    ("true", 0, 0),
    ("exit 3", 3, 0),
    ("false | cat", 0, 0),
    ("set -o pipefail; false | cat", 1, 0),
    ("exit 256", 0, 0),
    ("trap 'exit 0' EXIT; false", 0, 0),
    ("exec false", 1, 0),
    ("no-such-command", 127, 0),
    ("/etc/passwd", 126, 0),
    ("kill -9 $$", 137, 9),
    ("exit 137", 137, 0),
    ("kill -TERM $$", 143, 15),
    ("exit 143", 143, 0),
    ("kill -INT $$", 130, 2),
    ("exit 130", 130, 0),
    ("kill -PIPE $$", 141, 13),
    ("kill -SEGV $$", 139, 11),
    ("exit 255", 255, 0),
    ("bash -c 'kill -9 $$'", 137, 0),
    ("exec 1>&- 2>&-; exit 5", 5, 0),
    ("trap '' TERM; kill -TERM $$; exit 4", 4, 0),
    ("", 0, 0),
]


@pytest.mark.parametrize(("script", "status", "signal"), SCRIPTS, ids=[script or "empty" for script, *_ in SCRIPTS])
async def test_a_script_ends_with_its_own_status_and_signal(site: Site, script: str, status: int, signal: int) -> None:
    attempt = await site.script_job(script)
    assert await attempt.result() == (status, signal)


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("true",), 0, b""),
        (("no-such-command", "x"), 127, b"headrace: no-such-command: command not found\n"),
        (("/no/such/file",), 127, b"No such file or directory"),
        (("/etc/passwd",), 126, b"Permission denied"),
        (("",), 127, b"command not found"),
        (("cd",), 127, b"command not found"),
        (("bash", "-c", "exit 9"), 9, b""),
    ],
)
async def test_an_argv_is_run_as_a_program_and_what_prevents_it_is_said(
    site: Site, argv: tuple[str, ...], status: int, message: bytes
) -> None:
    attempt = await site.run(*argv)
    assert await attempt.result() == (status, 0)
    assert message in attempt.output("stderr")


async def test_a_background_child_that_outlives_the_shell_does_not_hold_the_job(site: Site) -> None:
    attempt = await site.script_job("sleep 300 & echo $!; exit 6")
    assert await attempt.result(seconds=10) == (6, 0)
    child = int(attempt.output())
    assert not _runs(child)


async def test_a_child_that_left_the_process_group_and_keeps_the_pipe_does_not_hold_the_job(site: Site) -> None:
    attempt = await site.script_job("echo before; setsid sleep 20 & echo $!; exit 7")
    assert await attempt.result(seconds=15) == (7, 0)
    assert attempt.output().startswith(b"before\n")


async def test_a_workload_that_stops_and_goes_on_is_followed_to_its_end(site: Site) -> None:
    attempt = await site.script_job("(sleep 0.5; kill -CONT $$) & kill -STOP $$; echo back; exit 8")
    assert await attempt.result() == (8, 0)
    assert attempt.output() == b"back\n"


@pytest.fixture
def watchful(site: Site) -> Site:
    """Its agents look after their helpers each second."""
    text = site.script.read_text()
    assert "\nhr_look=10 " in text
    site.script.write_text(text.replace("\nhr_look=10 ", "\nhr_look=1 "))
    return site


async def test_a_workload_that_kills_every_process_it_sees_ends_all_the_same(watchful: Site) -> None:
    own_namespace = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    attempt = await watchful.script_job("echo before; sleep 0.3; kill -9 -1; sleep 300", under=own_namespace)
    assert await attempt.result(seconds=60) == (137, 9)
    assert attempt.output() == b"before\n"


async def test_a_workload_that_removes_the_agents_files_is_ended_and_reported(watchful: Site) -> None:
    attempt = await watchful.script_job("echo before; sleep 0.3; rm -rf $TMPDIR/headrace-*; sleep 300")
    assert await attempt.result(seconds=60) == (137, 9)
    assert attempt.output() == b"before\n"
    assert b"[headrace] the agent's files were removed" in attempt.output("stderr")


async def test_a_workload_may_empty_tmp(site: Site) -> None:
    # This machine's own /tmp and /run are not for a test: both are new in a namespace of its own.
    hide = (
        "mount -t tmpfs none /run && mkdir /run/site && mount --bind . /run/site && mount -t tmpfs none /tmp && "
        'exec "$@"'
    )
    attempt = await site.script_job(
        "touch /tmp/x; rm -rf /tmp/*; ls -A /tmp; sleep 0.5; echo done; exit 4",
        environment={"TMPDIR": ""},
        socket=Path("/run/site/agent/agent.sock"),
        under=("unshare", "--mount", "bash", "-c", hide, "-"),
        by_text=True,
    )
    assert await attempt.result() == (4, 0)
    assert attempt.output() == b"done\n"


async def test_the_agent_works_the_same_when_its_text_is_the_command(site: Site) -> None:
    attempt = await site.run("bash", "-c", "echo hi; exit 3", by_text=True)
    assert await attempt.result() == (3, 0)
    assert attempt.output() == b"hi\n"


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
