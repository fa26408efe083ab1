"""The egress client: which addresses it reaches, and that nothing turns it from them."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from egress import Egress, EgressError, EgressRefused, check_url, is_public, parse_networks
from settings import Settings

LOOPBACK = parse_networks("127.0.0.1/32")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Names:
    """A resolver that answers each question with the next of its answers, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers, self.asked = list(answers), 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Receiver:
    """A server that keeps what it is sent and answers with given bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.requests, self.port = answer, list[bytes](), 0
        self.handle: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        self.requests.append(head + await reader.readexactly(length))
        try:
            if self.handle is not None:
                await self.handle(writer)
            else:
                writer.write(self.answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(answer: bytes = OK, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.31.0.1", "192.0.0.8",
        "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.7", "224.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "100::1", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::1", "3fff::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_the_public_internets_is_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_a_public_address_is_taken(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/", "file:///etc/passwd", "https:///x", "example.com", "", "https://user@example.com/",
        "https://user:pw@example.com/", "https://exa mple.com/", "https://example.com/\r\nX: y", "https://exämple.com/",
        "https://a.example\\@b.example/", "https://example.com:0/", "https://example.com:99999/",
        "https://example.com:x/", "https://[::1/", "https://example.com/" + "a" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_receiver_is_refused(url: str) -> None:
    with pytest.raises(EgressRefused):
        check_url(url)


async def test_a_receiver_in_an_allowed_network_gets_the_body_under_its_name() -> None:
    async with receiving() as receiver:
        egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]))
        answer = await egress.post(f"http://hooks.example:{receiver.port}/a?b=c", b"body", {"X-Kind": "test"})
    assert (answer.status, answer.body) == (200, b"ok")
    [request] = receiver.requests
    assert request.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert f"host: hooks.example:{receiver.port}".encode() in request.lower()
    assert b"x-kind: test" in request.lower()
    assert request.endswith(b"\r\n\r\nbody")


async def test_without_an_allowed_network_the_same_receiver_is_not_reached() -> None:
    async with receiving() as receiver:
        for host in ("hooks.example", "127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433"):
            with pytest.raises(EgressRefused):
                await Egress(resolver=Names(["127.0.0.1"])).post(f"http://{host}:{receiver.port}/", b"", {})
            with pytest.raises(EgressError):
                await Egress().post(f"http://{host}:{receiver.port}/", b"", {})
    assert receiver.requests == []


async def test_one_forbidden_address_among_public_ones_refuses_the_name() -> None:
    names = Names(["1.1.1.1", "10.0.0.1"])
    with pytest.raises(EgressRefused):
        await Egress(resolver=names).post("https://hooks.example/", b"", {})


async def test_a_name_that_changes_its_answer_is_asked_once_and_cannot_turn_the_connection() -> None:
    """DNS rebinding: the first answer is fine, every later one leads inside."""
    async with receiving() as receiver, receiving() as inside:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        egress = Egress(LOOPBACK, resolver=names)
        await egress.post(f"http://hooks.example:{receiver.port}/", b"1", {})
        assert names.asked == 1
        # The second delivery asks anew, and is judged anew.
        with pytest.raises(EgressRefused):
            await egress.post(f"http://hooks.example:{inside.port}/", b"2", {})
    assert (len(receiver.requests), inside.requests) == (1, [])


async def test_plain_http_is_for_allowed_networks_only() -> None:
    with pytest.raises(EgressRefused, match="https is wanted"):
        await Egress(resolver=Names(["1.1.1.1"])).post("http://hooks.example/", b"", {})


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with receiving() as inside:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{inside.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with receiving(moved) as receiver:
            egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]))
            assert (await egress.post(f"http://hooks.example:{receiver.port}/", b"", {})).status == 307
    assert inside.requests == []


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]))
        await egress.post(f"http://hooks.example:{receiver.port}/", b"", {})
    assert proxy.requests == []


async def test_an_endless_answer_is_cut_at_the_bound() -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with receiving() as receiver:
        receiver.handle = flood
        egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]), most_bytes=1000, timeout_seconds=10)
        answer = await egress.post(f"http://hooks.example:{receiver.port}/", b"", {})
    assert len(answer.body) == 1000


async def test_an_answer_that_does_not_come_ends_with_the_time() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with receiving() as receiver:
        receiver.handle = drip
        egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]), timeout_seconds=0.3)
        with pytest.raises(EgressError):
            await egress.post(f"http://hooks.example:{receiver.port}/", b"", {})


async def test_the_certificate_must_be_the_names(tmp_path: Path) -> None:
    server_tls, client_tls = certificate_for("hooks.example", tmp_path)
    async with receiving(tls=server_tls) as receiver:
        egress = Egress(LOOPBACK, resolver=Names(["127.0.0.1"]), tls=client_tls)
        assert (await egress.post(f"https://hooks.example:{receiver.port}/", b"x", {})).status == 200
        with pytest.raises(EgressError):
            await egress.post(f"https://other.example:{receiver.port}/", b"x", {})
        with pytest.raises(EgressError):
            # Nor is one taken whose issuer is not trusted.
            await Egress(LOOPBACK, resolver=Names(["127.0.0.1"])).post(
                f"https://hooks.example:{receiver.port}/", b"x", {}
            )
    assert len(receiver.requests) == 1


async def test_an_error_does_not_tell_the_address_behind_a_name() -> None:
    with pytest.raises(EgressRefused) as refused:
        await Egress(resolver=Names(["10.11.12.13"])).post("https://hooks.example/", b"", {})
    async with receiving() as receiver:
        port = receiver.port
    with pytest.raises(EgressError) as unreachable:
        await Egress(LOOPBACK, resolver=Names(["127.0.0.1"])).post(f"http://hooks.example:{port}/", b"", {})
    assert "10.11" not in str(refused.value)
    assert "127.0" not in str(unreachable.value)


def certificate_for(name: str, directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server of this name, and for a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / "server.pem"
    path.write_bytes(secret + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=pem.decode())


@pytest.mark.parametrize("text", ["10.0.0.0/33", "intranet", "10.0.0.1/8", "10.0.0.0/8;11.0.0.0/8"])
def test_a_network_that_is_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError):
        Settings(egress_allowed_networks=text)
    with pytest.raises(ValueError):
        parse_networks(text)
    assert len(parse_networks(Settings(egress_allowed_networks="10.0.0.0/8, fd00::/8").egress_allowed_networks)) == 2
