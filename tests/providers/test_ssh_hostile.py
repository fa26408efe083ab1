"""Hosts, names and keys that are made to do harm: one of them is reported, and keeps nobody else waiting."""

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.asn1 import der_encode
from cryptography.hazmat.primitives.asymmetric import rsa

from domain.errors import Ambiguous
from providers.base import HostReport, ProviderContext
from providers.local.container import ContainerEngine
from providers.local.container_flags import Setup
from providers.local.process import Completed
from providers.ssh import link
from providers.ssh.forward import ways
from providers.ssh.provider import SshProvider
from providers.ssh.settings import Fleet

KEY = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
SK = (
    "sk-ssh-ed25519@openssh.com"
    " AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAILvDXHqYDwz7NAhe3QHQ2E1bAQ1bT0y0X1Lq0Q0yKzZfAAAABHNzaDo="
)


def broken() -> str:
    """A key whose modulus is not the product of its primes: what asyncssh says then is no error of its own."""
    whole = rsa.generate_private_key(public_exponent=65_537, key_size=2048).private_numbers()
    numbers = (0, whole.public_numbers.n + 2, 65_537, whole.d, whole.p, whole.q, whole.dmp1, whole.dmq1, whole.iqmp)
    text = base64.encodebytes(der_encode(numbers)).decode()
    return f"-----BEGIN RSA PRIVATE KEY-----\n{text}-----END RSA PRIVATE KEY-----\n"


@pytest.fixture
async def said(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, bytes]]:
    """Of a server that lets everybody in: what it says to each command, over and over where that ends in no line."""
    words: dict[str, bytes] = {}

    class Open(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    async def talk(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(words["greeting"])
        while not words["greeting"].endswith(b"\n"):
            process.stdout.write(words["greeting"])
            await process.stdout.drain()
        process.exit(0)

    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Open, server_host_keys=[key], process_factory=talk, encoding=None
    )

    async def here(*_: Any) -> str:
        return "127.0.0.1"

    # This machine's own addresses are refused.
    monkeypatch.setattr(link, "checked_address", here)
    words["port"] = str(server.get_port()).encode()
    yield words
    server.close()


async def report_of(tmp_path: Path, *hosts: Any, **fields: Any) -> list[HostReport]:
    fleet = Fleet.model_validate({"private_key": KEY, "hosts": hosts, **fields})
    options = {"connects": 1, "connect_seconds": 0.5}
    provider = SshProvider(ProviderContext("conn_1", "hr-test", str(tmp_path), options), fleet)
    try:
        return await provider.probe()
    finally:
        await provider.close()


async def test_a_host_that_opens_no_channel_is_not_waited_for(tmp_path: Path) -> None:
    class Silent:
        def is_closed(self) -> bool:
            return False

        async def create_process(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        def abort(self) -> None:
            pass

    fleet = Fleet.model_validate({"private_key": KEY, "hosts": [{"hostname": "198.51.100.1"}]})
    provider = SshProvider(ProviderContext("conn_1", "hr-test", str(tmp_path), {"greet_seconds": 0.1}), fleet)
    provider._hosts["198.51.100.1"].link._connection = Silent()  # type: ignore[assignment]
    async with asyncio.timeout(5):
        with pytest.raises(Ambiguous, match="was lost"):
            await provider.list_owned()
    await provider.close()


@pytest.mark.parametrize(
    "greeting",
    [b"x" * 8192, b"9" * 5000 + b" 1\n", b"1 inf\n", b"1 1e15\n", b"99999999999999999999 1\n", b"\xff\xfe 1\n", b"\n"],
)
async def test_a_host_whose_clock_is_none_is_no_host(tmp_path: Path, said: dict[str, bytes], greeting: bytes) -> None:
    said["greeting"] = greeting
    async with asyncio.timeout(20):
        (told,) = await report_of(tmp_path, {"hostname": "198.51.100.1"}, port=int(said["port"]))
    assert (told.status, told.message) == ("probe_failed", "198.51.100.1 is no Linux host with a shell")


async def test_a_key_of_one_host_that_is_none_is_told_of_that_host(tmp_path: Path) -> None:
    own = {"hostname": "198.51.100.1", "private_key": broken()}
    unread, kind, other = await report_of(
        tmp_path, own, {"hostname": "198.51.100.2", "host_key": SK}, {"hostname": "127.0.0.1"}
    )
    assert (unread.status, kind.status) == ("auth", "probe_failed")
    assert unread.message.startswith("the private key for 198.51.100.1 cannot be read")
    assert "of a kind that no host shows" in kind.message
    assert "own machine" in other.message


async def test_a_name_that_is_none_is_told_of_that_host(tmp_path: Path) -> None:
    for name in ("a..b", f"{'x' * 64}.example"):
        told, other = await report_of(tmp_path, {"hostname": name}, {"hostname": "127.0.0.1"})
        assert told.status == "unreachable"
        assert "own machine" in other.message


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "[{}, {}]",
        "{}",
        "null",
        "1",
        "[null]",
        "[[]]",
        '[{"State": {"ExitCode": "x", "Status": "exited"}}]',
        f'[{{"Config": {{"Labels": {{"headrace.ports": "{DEEP}"}}}}}}]',
        '[{"Config": {"Labels": {"headrace.ports": "[{}]"}}, "HostConfig": {"NetworkMode": "host"}}]',
        '[{"Config": {"Labels": ["headrace.attempt"]}}]',
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_an_engine_that_describes_no_container_is_not_understood(answer: str) -> None:
    class Place:
        starts_at_once = 1
        booted_at = datetime(2026, 1, 1, tzinfo=UTC)

        async def run(self, argv: Any, **_: Any) -> Completed:
            return Completed(0, answer, "")

    engine = ContainerEngine(Setup(name="docker", argv=("docker",), takes_gpus=False), Place())  # type: ignore[arg-type]
    with pytest.raises(Ambiguous):
        await engine.inspect("hr-x", Path())


async def test_a_workload_opens_no_more_connections_than_the_bound(tmp_path: Path) -> None:
    class Open(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

        def unix_server_requested(self, listen_path: str) -> bool:
            return True

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def says(number: int) -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "host"))
        writer.write(f"{number}\n".encode())
        return await reader.readline(), writer

    plane = await asyncio.start_unix_server(echo, str(tmp_path / "plane"))
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Open, server_host_keys=[key])
    async with asyncssh.connect(
        "127.0.0.1", server.get_port(), known_hosts=None, config=None, client_keys=None
    ) as host:
        await host.create_unix_server(ways(str(tmp_path / "plane"), 4), str(tmp_path / "host"))
        async with asyncio.timeout(10):
            answers = [await says(number) for number in range(6)]
            assert [answer for answer, _ in answers] == [b"0\n", b"1\n", b"2\n", b"3\n", b"", b""]
            # Each that ends makes room.
            answers[0][1].close()
            while (await says(6))[0] != b"6\n":
                pass
    server.close()
    plane.close()


async def test_names_that_nobody_resolves_keep_no_one_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def never(*_: Any, **__: Any) -> list[Any]:
        over.wait(30)
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    hosts = [{"hostname": f"gpu-{number}.example"} for number in range(64)]
    asked = asyncio.create_task(report_of(tmp_path, *hosts))
    try:
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1):
            assert await asyncio.to_thread(lambda: "served") == "served"
        assert {told.status for told in await asked} == {"unreachable"}
    finally:
        over.set()
