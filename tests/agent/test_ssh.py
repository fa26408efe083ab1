"""Users' SSH access: a real client reaches a real sshd in a real container by its published port."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent.script import agent_script
from domain.spec import Workload
from domain.ssh_access import endpoint_entries, known_hosts_line
from providers.base import AgentBootstrap, Handle
from providers.local import LocalProvider
from providers.local.host_image import load
from providers.local.host_tree import host_tree, shared_libraries
from tests.agent.site import Attempt, Site
from tests.providers.local_support import cleaned, make_local, make_spec, setup_of, start, unique_owner, view_of

pytestmark = pytest.mark.containers

PLAIN_IMAGE, SSHD_IMAGE = "localhost/headrace/host:latest", "localhost/headrace/sshd:test"
_PROGRAMS = (Path("/usr/sbin/sshd"), Path("/usr/bin/ssh-keygen"))


@pytest.fixture(scope="module")
def podman_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose engine has an image with sshd: this machine's own. The image brings what must not count: a
    host key, an authorized key and a configuration that lets passwords in."""
    data = tmp_path_factory.mktemp("podman")
    if not all(program.exists() for program in _PROGRAMS):
        pytest.skip("sshd is not installed: tests/prepare installs it")
    tree = host_tree()
    for path in (*_PROGRAMS, *Path("/usr/lib/openssh").glob("sshd-*"), *shared_libraries(_PROGRAMS)):
        tree.add_file(path)
    tree.texts["etc/passwd"] = "root:x:0:0:root:/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/bin/false\n"
    tree.directories.update(("etc/ssh", "root/.ssh"))
    tree.texts["root/.ssh/authorized_keys"] = f"{_key(data / 'baked').read_text()}"
    _key(data / "known")
    tree.files["etc/ssh/ssh_host_ed25519_key"] = data / "known"
    tree.texts["etc/ssh/sshd_config"] = (
        "Port 2022\nPermitRootLogin no\nPasswordAuthentication yes\nAuthorizedKeysFile /root/.ssh/other\n"
    )
    load(setup_of(data), SSHD_IMAGE, tree)
    return data


@pytest.fixture
async def provider(podman_data: Path) -> AsyncIterator[LocalProvider]:
    async with cleaned(make_local(podman_data, "podman", owner=unique_owner())) as provider:
        yield provider


def _key(path: Path) -> Path:
    """Makes a key pair; the public file."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "o'neil@café", "-f", path], check=True)
    return path.with_suffix(".pub")


async def launched(
    site: Site, provider: LocalProvider, data: Path, image: str, key: str
) -> tuple[Attempt, Handle]:  # fmt: skip
    attempt = site.attempt(Workload(argv=("sleep", "120")), ssh_public_key=key, image=image)
    bootstrap = AgentBootstrap(agent_script(), SecretStr(attempt.token), socket=str(site.settings.agent_socket))
    spec = make_spec(
        data, "", image=image, attempt_id=attempt.instance.id, agent=bootstrap, ssh_public_key=key,
        owner_id=provider.owner_id,
    )  # fmt: skip
    return attempt, await start(provider, spec)


async def said_of_ssh(attempt: Attempt) -> None:
    """Waits for the agent's word, whatever it is."""
    for _ in range(600):
        if any(event.type.startswith("ssh_") for event in await attempt.events()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the agent said nothing of SSH")


async def say_hello(entry: dict[str, object], key: Path, known_hosts: Path) -> tuple[int, str]:
    """Status and words of a client that trusts this host key only."""
    client = await asyncio.create_subprocess_exec(
        "ssh", "-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
        "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known_hosts}",
        "-o", "GlobalKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-p", str(entry["port"]),
        f"{entry['user']}@{entry['host']}", "echo hello from $(id -un)",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(client.communicate(), 30)
    return client.returncode or 0, said.decode()


async def test_the_users_key_gets_in_where_the_published_host_key_answers_and_no_other(
    site: Site, provider: LocalProvider, podman_data: Path, tmp_path: Path
) -> None:
    key = _key(tmp_path / "mine").read_text().strip()
    attempt, handle = await launched(site, provider, podman_data, SSHD_IMAGE, key)
    await said_of_ssh(attempt)
    host_key = (await attempt.row()).ssh_host_key
    assert host_key is not None
    assert host_key.split()[1] != (podman_data / "known.pub").read_text().split()[1]
    published = [asdict(endpoint) for endpoint in (await view_of(provider, handle)).endpoints]
    (entry,) = endpoint_entries((), key, published)
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(known_hosts_line(str(entry["host"]), int(entry["port"]), host_key) + "\n")
    assert await say_hello(entry, tmp_path / "mine", known_hosts) == (0, "hello from root\n")
    _key(tmp_path / "another")
    for stranger in (tmp_path / "another", podman_data / "baked"):
        status, said = await say_hello(entry, stranger, known_hosts)
        assert (status, "Permission denied (publickey)" in said) == (255, True), said
    known_hosts.write_text(
        known_hosts_line(str(entry["host"]), int(entry["port"]), (podman_data / "known.pub").read_text()) + "\n"
    )
    status, said = await say_hello(entry, tmp_path / "mine", known_hosts)
    assert (status, "verification failed" in said) == (255, True), said


async def test_an_image_without_sshd_runs_all_the_same_and_the_log_says_so(
    site: Site, provider: LocalProvider, podman_data: Path, tmp_path: Path
) -> None:
    key = _key(tmp_path / "mine").read_text().strip()
    attempt, _ = await launched(site, provider, podman_data, PLAIN_IMAGE, key)

    await said_of_ssh(attempt)
    assert (await attempt.row()).ssh_host_key is None
    assert any("no sshd" in line.message for line in await attempt.lines("system"))
