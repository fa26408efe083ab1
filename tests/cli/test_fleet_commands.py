"""`headrace fleet`: hosts are added, told of one by one, edited with their keys kept, and forgotten."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

import commands.fleet
from domain.backends import backend_of
from domain.roles import Role
from store import access, connections, host_keys
from store.tables import Connection
from tests.cli.conftest import Headrace, Result, Server

KEY = "-----BEGIN CANARY KEY-----\nof the fleet\n"
OWN = "-----BEGIN CANARY KEY-----\nof one host\n"


class Prober:
    """Says of every host what `of` says, as a worker would."""

    def __init__(self, server: Server) -> None:
        self.server, self.of, self.seen = server, {}, []  # type: ignore[var-annotated]
        self.answers = threading.Event()
        self.answers.set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            if self.answers.is_set():
                self.server.write(self._settle)

    def _settle(self, session: Any) -> None:
        waiting = select(Connection).where(Connection.verification > Connection.verified_number)
        for row in session.exec(waiting).all():
            wanted = connections.to_verify(
                session, self.server.services.vault, row.id, row.verification, self.server.services.clock()
            )
            if wanted is None:
                continue
            self.seen.append(wanted.values)
            hosts = [self._report(host["hostname"]) for host in wanted.values.get("hosts", ())]
            status = "ok" if any(host["usable"] for host in hosts) else "unreachable"
            message = "; ".join(f"{host['hostname']}: {host['message']}" for host in hosts if not host["usable"])
            now = self.server.services.clock()
            connections.verified(session, row.id, row.verification, status, message, now, hosts)

    def _report(self, hostname: str) -> dict[str, Any]:
        status = self.of.get(hostname, "ok")
        well = status == "ok"
        return {
            "hostname": hostname, "status": status, "usable": well,
            "message": "2x H100 (80GB), 160GB total" if well else "cannot be reached",
            "gpus": ["NVIDIA H100 80GB HBM3"] * 2 if well else [], "driver": "550.54" if well else None,
            "engine": "docker 28.0" if well else None, "vcpus": 16 * well, "memory_gb": 64.5 * well,
            "disk_gb": 200 * well, "host_key_fingerprint": "SHA256:abc" if well else None,
        }  # fmt: skip


@pytest.fixture
def prober(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prober]:
    """With an organization's admin key in the environment."""

    def make(session: Any) -> Any:
        now = server.services.clock()
        organization = access.create_organization(session, "acme", now, enabled=True)
        return access.create_key(session, organization.id, "admin", Role.ORG_ADMIN, now)

    monkeypatch.setenv("HEADRACE_API_KEY", server.write(make).token)
    monkeypatch.setattr(commands.fleet, "_PAUSE_SECONDS", 0.01)
    with Prober(server) as running:
        yield running


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "fleet.key").write_text(KEY)
    return tmp_path / "fleet.key"


def fleet_of(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    return dict(json.loads(result.out))


def test_a_fleet_is_added_probed_listed_and_removed(
    headrace: Headrace, prober: Prober, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prober.of["192.0.2.12"] = "unreachable"
    say = commands.fleet.say

    def heard(message: str) -> None:
        say(message)
        if message.startswith("still probing"):
            prober.answers.set()

    monkeypatch.setattr(commands.fleet, "_TELL_SECONDS", 0.02)
    monkeypatch.setattr(commands.fleet, "say", heard)
    prober.answers.clear()
    added = headrace(
        "fleet", "add", "--host", "root@192.0.2.11:2222", "--host", "192.0.2.12", "--key", key, "--user", "ops",
        "--bastion", "jump@192.0.2.9", "--price", "2.50", "--slots", 4, "--name", "lab",
    )  # fmt: skip
    assert added.code == 0, added.err
    assert "probing 2 hosts" in added.err
    assert "still probing" in added.err
    assert "not used: 192.0.2.12" in added.err
    assert "2x H100 (80GB), 160GB total" in added.out
    assert "cannot be reached" in added.out
    assert prober.seen[0] == {
        "user": "ops", "private_key": KEY, "bastion_hostname": "192.0.2.9", "bastion_user": "jump",
        "price_usd_hr": "2.50", "cpu_slots": 4,
        "hosts": [{"hostname": "192.0.2.11", "port": 2222, "user": "root"}, {"hostname": "192.0.2.12"}],
    }  # fmt: skip
    (listed,) = json.loads(headrace("fleet", "list", "--json").out)
    assert (listed["name"], listed["host_count"], listed["gpu_count"]) == ("lab", 2, 2)
    assert "lab" in headrace("fleet", "list").out
    assert headrace("fleet", "probe", "lab").code == 0
    assert "2x H100" in headrace("backend", "get", listed["id"]).out
    removed = headrace("fleet", "remove", "lab")
    assert (removed.code, "no host was touched" in removed.err) == (0, True)
    assert headrace("fleet", "probe", "lab").code == 5
    assert "CANARY" not in added.out + added.err + removed.err


@pytest.mark.parametrize("waits", [True, False], ids=["the answer", "the fleet"])
def test_where_no_host_can_be_used_each_is_told_of_and_it_fails(
    headrace: Headrace, prober: Prober, server: Server, key: Path, waits: bool
) -> None:
    if waits:
        # The API then waits for the outcome itself.
        server.services.temporal = object()  # type: ignore[assignment]
    prober.of = {"192.0.2.1": "unreachable", "192.0.2.2": "auth"}
    added = headrace("fleet", "add", "--host", "192.0.2.1", "--host", "192.0.2.2", "--key", key)
    assert added.code == 2
    assert "192.0.2.2: cannot be reached" in added.err
    assert [line.split()[:2] for line in added.out.splitlines()[1:]] == [
        ["192.0.2.1", "unreachable"], ["192.0.2.2", "auth"],
    ]  # fmt: skip


def test_hosts_are_added_and_removed_and_keys_that_are_not_given_stay(
    headrace: Headrace, prober: Prober, tmp_path: Path
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "fleet").write_text(KEY)
    (tmp_path / "keys" / "two").write_text(OWN)
    (tmp_path / "fleet.yaml").write_text(
        "name: lab\nprivate_key_file: keys/fleet\nprice_usd_hr: 1.10\nbastion: jump@192.0.2.9:2022\n"
        "hosts:\n- 192.0.2.1\n- hostname: 192.0.2.2\n  private_key_file: keys/two\n  cpu_slots: 3\n"
    )
    made = fleet_of(headrace("fleet", "add", "--file", tmp_path / "fleet.yaml", "--json"))
    assert made["fields"]["hosts"] == [{"hostname": "192.0.2.1"}, {"hostname": "192.0.2.2", "cpu_slots": 3}]
    assert (made["fields"]["price_usd_hr"], made["fields"]["bastion_port"]) == ("1.10", 2022)
    edited = fleet_of(
        headrace("fleet", "edit", "lab", "--add-host", "192.0.2.3:23", "--remove-host", "192.0.2.1", "--slots", 9,
                 "--no-bastion", "--json")
    )  # fmt: skip
    assert edited["fields"] == {
        "price_usd_hr": "1.10", "cpu_slots": 9,
        "hosts": [{"hostname": "192.0.2.2", "cpu_slots": 3}, {"hostname": "192.0.2.3", "port": 23}],
    }  # fmt: skip
    assert (prober.seen[-1]["private_key"], prober.seen[-1]["hosts"][0]["private_key"]) == (KEY, OWN)
    prober.of["192.0.2.4"] = "ok"
    prober.of |= {"192.0.2.2": "unreachable", "192.0.2.3": "unreachable"}
    assert headrace("fleet", "edit", "lab", "--user", "nobody").code == 2
    assert "user" not in json.loads(headrace("fleet", "list", "--json").out)[0]["fields"]
    # What was refused stands in the way of nothing that asks no host.
    assert headrace("fleet", "edit", "lab", "--name", "attic").code == 0


def test_a_connection_that_is_no_fleet_is_left_alone(headrace: Headrace, prober: Prober, server: Server) -> None:
    now, vault = server.services.clock(), server.services.vault
    scope, runpod, values = connections.Scope(), backend_of("runpod"), {"api_key": "k"}
    pods = server.write(lambda s: connections.connect(s, vault, scope, runpod, "pods", values, now).id)
    for word in ("pods", pods):
        answer = headrace("fleet", "remove", word)
        assert (answer.code, "fleet" in answer.err) in {(5, True), (2, True)}
    assert headrace("backend", "get", pods).code == 0


def test_a_host_key_is_forgotten(headrace: Headrace, prober: Prober, server: Server, key: Path) -> None:
    made = fleet_of(headrace("fleet", "add", "--host", "192.0.2.1", "--key", key, "--name", "lab", "--json"))
    now = server.services.clock()
    server.write(lambda s: host_keys.pin(s, made["id"], "192.0.2.1:22", "ssh-ed25519 AAAA", now))
    answer = headrace("fleet", "edit", "lab", "--forget-host-key", "192.0.2.1")
    assert (answer.code, "forgot the host key of 192.0.2.1" in answer.err) == (0, True)
    assert headrace("fleet", "edit", "lab", "--forget-host-key", "192.0.2.1").code == 5


WRONG = (
    (["add", "--host", "192.0.2.1"], "private key is missing"),
    (["add", "--key", "{key}"], "a fleet has hosts"),
    (["add", "--key", "{key}", "--host", "a@b@c:x:y"], "fields.hosts[0]"),
    (["add", "--key", "{key}", "--host", "a", "--port", "70000"], "fields.port"),
    (["add", "--key", "{key}", "--host", "a", "--bastion", "a:"], "the bastion is written as"),
    (["add", "--key", "/nonexistent", "--host", "a"], "cannot be read"),
    (["edit", "lab"], "nothing is to be changed"),
    (["edit", "lab", "--remove-host", "192.0.2.9"], "no host of lab"),
    (["edit", "lab", "--remove-host", "192.0.2.1"], "a fleet has hosts"),
    (["edit", "lab", "--add-host", "root@192.0.2.1:23"], "is a host of lab already"),
    (["add", "--key", "{key}", "--host", "192.0.2.1", "--name", "b"], "is a host of lab already"),
)


def test_what_is_wrong_is_said(headrace: Headrace, prober: Prober, key: Path) -> None:
    assert headrace("fleet", "add", "--host", "192.0.2.1", "--key", key, "--name", "lab").code == 0
    for words, said in WRONG:
        answer = headrace("fleet", *(word.format(key=key) for word in words))
        assert answer.code in {2, 11}, words
        assert said in answer.err, words
        assert "CANARY" not in answer.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: [a]\nprivate_key: CANARY\n", "private_key_file"),
        ("hosts:\n- hostname: a\n  key: CANARY\n", "hosts[0]: 'key' is none of"),
        ("hosts: a\n", "hosts is a list"),
        ("- a\n", "a mapping is wanted"),
        ("", "is empty"),
        ("a: [", "not YAML"),
        ("user: a\nuser: b\n", "is there twice"),
        ("hosts: [a]\nprivate_key_file: nowhere\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_fleet_is_refused(headrace: Headrace, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    answer = headrace("fleet", "add", "--file", tmp_path / "fleet.yaml")
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert "CANARY" not in answer.err
