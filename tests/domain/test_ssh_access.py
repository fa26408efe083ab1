"""Which port is published for SSH, and what an instance's row says of where it is reached."""

from domain.spec import Port
from domain.ssh_access import endpoint_entries, known_hosts_line, with_ssh

KEY = "ssh-ed25519 AAAA me"
WEB = Port(name="web", container_port=8000, protocol="http")


def published(name: str, protocol: str = "tcp", port: int = 40_000) -> dict[str, object]:
    return {"name": name, "protocol": protocol, "host": "h", "port": port}


def test_a_port_is_published_for_ssh_only_with_a_key() -> None:
    assert with_ssh((WEB,), None) == (WEB,)
    assert with_ssh((WEB,), KEY) == (WEB, Port(name="ssh", container_port=22, protocol="tcp"))


def test_the_users_own_port_22_serves_for_both() -> None:
    own = Port(name="shell", container_port=22, protocol="tcp")
    assert with_ssh((own,), KEY) == (own,)
    assert endpoint_entries((own,), KEY, [published("shell")]) == [
        published("shell"), {**published("ssh"), "protocol": "ssh", "user": "root"},
    ]  # fmt: skip


def test_another_port_that_is_named_ssh_stays_one_of_the_users() -> None:
    other = Port(name="ssh", container_port=2222, protocol="tcp")
    names = [port.name for port in with_ssh((other,), KEY)]
    assert names == ["ssh", "headrace-ssh"]
    entries = endpoint_entries((other,), KEY, [published("ssh", port=1), published("headrace-ssh", port=2)])
    assert [(entry["protocol"], entry["port"]) for entry in entries] == [("tcp", 1), ("ssh", 2)]


def test_without_a_key_there_is_no_ssh_whatever_the_names() -> None:
    other = Port(name="ssh", container_port=22, protocol="tcp")
    assert endpoint_entries((other,), None, [published("ssh")]) == [published("ssh")]


def test_a_client_that_trusts_the_line_trusts_this_address_and_port_alone() -> None:
    assert known_hosts_line("h", 40_000, KEY) == "[h]:40000 ssh-ed25519 AAAA"
    assert known_hosts_line("h", 22, KEY) == "h ssh-ed25519 AAAA"
