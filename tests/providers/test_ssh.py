"""The parts of the adapter to SSH fleets that need no host: what is read, what is refused, what is said."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import asyncssh
import pytest
from pydantic import SecretStr, ValidationError

from domain.backends import backend_of, check_fields
from domain.clock import utc_now
from domain.errors import Ambiguous, InvalidRequest, ProviderRejected
from domain.spec import RegistryCredential
from providers.base import Handle, OfferQuery, ProviderContext
from providers.connect import build
from providers.local.images import auth_file, qualify
from providers.ssh import scripts
from providers.ssh.addresses import check_behind_bastion, checked_address
from providers.ssh.link import HostUnreachable, target_of
from providers.ssh.offers import host_offers
from providers.ssh.probe import read_facts, report
from providers.ssh.provider import SshProvider
from providers.ssh.settings import Bastion, Fleet, FleetHost, SshOptions

KEY = SecretStr("canary-private-key")
CPU_HOST = "cpus 16\nmemory 65000000\ndisk 200000000\nengine docker 28.0\ndone\n"
GPU = "gpu NVIDIA H100 80GB HBM3, 81559, GPU-{}\n"


def fleet(*names: str, **changes: object) -> Fleet:
    hosts = tuple(FleetHost(hostname=name) for name in names or ("192.0.2.1",))
    return Fleet.model_validate({"private_key": KEY, "hosts": hosts, **changes})


class TestAFleet:
    def test_hosts_go_before_the_fleet_and_the_bastion_has_a_port_of_its_own(self) -> None:
        own = FleetHost(hostname="192.0.2.2", port=2222, user="root", private_key=SecretStr("other"))
        one = Fleet(private_key=KEY, hosts=(own, FleetHost(hostname="192.0.2.3")), port=2200)
        assert (target_of(one, own).port, target_of(one, own).user) == (2222, "root")
        plain = target_of(one, one.hosts[1])
        assert (plain.port, plain.user, plain.private_key) == (2200, "ubuntu", KEY)
        assert target_of(one, Bastion(hostname="192.0.2.9")).port == 22

    def test_shows_no_key(self) -> None:
        one = fleet()
        assert "canary" not in repr(one)
        assert "canary" not in one.model_dump_json()
        assert "canary" not in repr(target_of(one, one.hosts[0]))

    @pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a/b", "x" * 254])
    def test_takes_no_host_that_is_none(self, name: str) -> None:
        with pytest.raises(ValidationError):
            FleetHost(hostname=name)

    def test_has_a_host_once(self) -> None:
        with pytest.raises(ValidationError, match="twice"):
            fleet("192.0.2.1", "192.0.2.1")

    def test_has_no_directory_that_is_too_long_for_a_socket_or_a_shell(self) -> None:
        for directory in ("relative", "/" + "x" * 60, "/a b", "/a;b"):
            with pytest.raises(ValidationError):
                SshOptions(directory=directory)


class TestAddresses:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "224.0.0.1"]
    )
    async def test_of_this_machine_or_of_nobody_are_refused(self, host: str) -> None:
        with pytest.raises(ProviderRejected):
            await checked_address(host, 22, None)

    async def test_this_machines_own_are_refused_even_where_their_network_is_allowed(self) -> None:
        import ipaddress

        with pytest.raises(ProviderRejected, match="own machine"):
            await checked_address("localhost", 22, (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")))

    async def test_must_lie_in_the_allowed_networks(self) -> None:
        networks = SshOptions(allowed_networks=("192.0.2.0/25",)).networks
        assert await checked_address("192.0.2.1", 22, networks) == "192.0.2.1"
        with pytest.raises(ProviderRejected, match="outside"):
            await checked_address("192.0.2.200", 22, networks)

    def test_behind_a_bastion_a_name_cannot_be_held_against_networks(self) -> None:
        networks = SshOptions(allowed_networks=("192.0.2.0/25",)).networks
        check_behind_bastion("gpu-1.internal", None)
        check_behind_bastion("192.0.2.1", networks)
        for host in ("gpu-1.internal", "192.0.2.200", "127.0.0.1"):
            with pytest.raises(ProviderRejected):
                check_behind_bastion(host, networks)


class TestTheReport:
    def test_sums_up_what_the_seller_of_the_host_would(self) -> None:
        facts = read_facts(GPU.format(0) + GPU.format(1) + "version 550.54\n" + CPU_HOST)
        said = report("192.0.2.1", facts)
        assert (said.status, said.message) == ("ok", "2x H100 (80GB), 160GB total")
        assert (said.vcpus, said.memory_gb, said.disk_gb, said.engine) == (16, 66.6, 204, "docker 28.0")

    @pytest.mark.parametrize(
        ("extra", "status", "words"),
        [
            ("", "no_gpu", "reachable, no GPU"),
            ("driver nvidia-smi: Failed to initialize NVML\n", "probe_failed", "Failed to initialize NVML"),
            ("gpu NVIDIA Unheard Of 9000, 12288, GPU-0\n", "probe_failed", "not in the catalog"),
            ("missing flock\n", "no_engine", "flock: not installed"),
        ],
    )
    def test_tells_no_gpu_from_a_probe_that_failed(self, extra: str, status: str, words: str) -> None:
        said = report("192.0.2.1", read_facts(extra + CPU_HOST))
        assert said.reachable
        assert said.status == status
        assert words in said.message

    def test_names_why_no_engine_is_used(self) -> None:
        text = CPU_HOST.replace("engine docker 28.0", "rejected docker: Cannot connect\nrejected podman: not installed")
        said = report("192.0.2.1", read_facts(text))
        assert said.status == "no_engine"
        assert "Cannot connect" in said.message

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "done",
            "cpus many\nmemory 1\ndisk 1\n",
            "memory 1\ndisk 1\ndone",
            "cpus -1\nmemory 1\ndisk 1\n",
            f"cpus 1\nmemory {'9' * 400}\ndisk 1\n",
        ],
    )
    def test_an_answer_that_is_none_is_an_error(self, text: str) -> None:
        with pytest.raises(Ambiguous):
            read_facts(text)


class TestOffers:
    def _offers(self, text: str, slots: int = 4) -> dict[int, tuple[str, bool]]:
        found = host_offers(
            "192.0.2.1", read_facts(text), connection_id="conn_1", price_usd_hr=Decimal("9.99"), slots=slots,
            observed_at=utc_now(),
        )  # fmt: skip
        return {offer.gpu_count: (str(offer.price_usd_hr), offer.available) for offer in found}

    def test_a_job_pays_for_its_part_of_the_host(self) -> None:
        assert self._offers(CPU_HOST) == {0: ("2.497500", True)}
        assert self._offers(CPU_HOST, slots=1) == {0: ("9.990000", True)}
        two = GPU.format(0) + GPU.format(1) + CPU_HOST
        assert self._offers(two) == {1: ("4.995000", True), 2: ("9.990000", True)}

    def test_what_is_leased_is_not_offered(self) -> None:
        assert self._offers(CPU_HOST + "lease aaaa cpu owner\n" * 4) == {0: ("2.497500", False)}
        two = GPU.format(0) + GPU.format(1) + CPU_HOST
        assert self._offers(two + "lease aaaa GPU-1 owner\n") == {1: ("4.995000", True), 2: ("9.990000", False)}

    def test_say_whether_the_disk_is_bounded_and_the_network_closed(self) -> None:
        for text, said in (
            (CPU_HOST, (False, False)),
            (CPU_HOST + "quota xfs\nnetwork headrace-fleet headrace0\n", (True, True)),
            (CPU_HOST + "open iptables is not installed\n", (False, False)),
        ):
            (offer,) = host_offers(
                "192.0.2.1", read_facts(text), connection_id="conn_1", price_usd_hr=Decimal(0), slots=1,
                observed_at=utc_now(),
            )  # fmt: skip
            assert (offer.disk_enforced, offer.network_isolated) == said

    def test_a_host_that_is_not_usable_offers_nothing(self) -> None:
        assert self._offers("driver broken\n" + CPU_HOST) == {}
        assert self._offers("missing flock\n" + CPU_HOST) == {}
        assert self._offers("gpu NVIDIA Unheard Of 9000, 12288, GPU-0\n" + CPU_HOST) == {}


class TestPulls:
    """The script that a host runs, with a stand-in for the engine that shows what it was given."""

    @pytest.mark.parametrize("docker", [True, False])
    @pytest.mark.parametrize("code", [0, 1])
    def test_the_password_is_in_a_file_that_goes_with_the_command_and_marks_the_repository(
        self, tmp_path: Path, docker: bool, code: int
    ) -> None:
        engine = tmp_path / "engine"
        engine.write_text(
            '#!/bin/bash\necho "args $*"\n'
            'for a in "$@"; do case $a in --config=*) f=${a#*=}/config.json ;; --authfile=*) f=${a#*=} ;; esac; done\n'
            f'echo "file $(base64 -w0 <"$f")"; echo "left $f"; exit {code}\n'
        )
        engine.chmod(0o755)
        reference = qualify("registry.example/org/private:v1")
        credential = RegistryCredential(username="robot", password=SecretStr('pa\'ss "wor$d" 41c7'))
        script = scripts.pull(
            str(tmp_path / "headrace"), [str(engine), str(reference)], reference.name,
            auth_file(reference, credential, docker=docker), 60, docker=docker, secret=True,
        )  # fmt: skip
        done = subprocess.run(["bash", "-s"], input=script, capture_output=True, text=True, check=False)
        lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert done.returncode == code
        assert "41c7" not in lines["args"]
        auths = json.loads(base64.b64decode(lines["file"]))["auths"]
        pair = base64.b64decode(auths["registry.example"]["auth"]).decode()
        assert pair == 'robot:pa\'ss "wor$d" 41c7'
        assert not os.path.exists(lines["left"])
        mark = scripts.is_private(str(tmp_path / "headrace"), reference.name)
        assert (subprocess.run(["bash", "-c", mark], check=False).returncode == 0) is (code == 0)


class TestTheAdapter:
    async def test_a_fleet_that_is_away_has_no_empty_list(self, tmp_path: Path) -> None:
        key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
        options = {"connects": 1, "connect_seconds": 0.2}
        provider = SshProvider(ProviderContext("conn_1", "hr-test", str(tmp_path), options), fleet(private_key=key))
        for ask in (provider.list_owned, lambda: provider.offers(OfferQuery())):
            with pytest.raises(HostUnreachable):
                await ask()
        assert (await provider.verify()).status == "unreachable"
        await provider.close()

    async def test_what_is_on_a_host_that_left_the_fleet_is_not_called_gone(self, tmp_path: Path) -> None:
        provider = SshProvider(ProviderContext("conn_1", "hr-test", str(tmp_path)), fleet())
        handle = Handle(provider_id="hr-test-inst-aaaaaaaaaaaaaaaaaaaa", resource_type="container", host="192.0.2.77")
        for question in (provider.get(handle), provider.terminate(handle)):
            with pytest.raises(Ambiguous, match="not in the fleet"):
                await question
        await provider.close()

    def test_without_its_library_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "asyncssh", None)
        provider = SshProvider(ProviderContext("conn_1", "hr-test", str(tmp_path)), fleet())
        with pytest.raises(ProviderRejected, match=r"headrace\[ssh\]"):
            asyncio.run(provider.list_owned())

    def test_building_it_loads_no_ssh_library(self) -> None:
        program = (
            "import sys\n"
            "from providers.base import ProviderContext\n"
            "from providers.ssh.provider import SshProvider\n"
            "from providers.ssh.settings import Fleet, FleetHost\n"
            "fleet = Fleet(private_key='x', hosts=(FleetHost(hostname='192.0.2.1'),))\n"
            "SshProvider(ProviderContext('conn_1', 'hr-test', '/nonexistent'), fleet)\n"
            "sys.exit('asyncssh' in sys.modules or 'cryptography' in sys.modules)\n"
        )
        root = Path(__file__).parent.parent.parent
        done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class TestTheForm:
    def test_becomes_a_fleet(self, tmp_path: Path) -> None:
        filled = check_fields(
            backend_of("ssh"),
            {
                "private_key": "canary",
                "hosts": ["192.0.2.1", "root@gpu-1.example:2200", "[2001:db8::1]:22"],
                "bastion_hostname": "192.0.2.9",
                "bastion_user": "jump",
                "price_usd_hr": "2.50",
                "cpu_slots": "4",
            },
        )
        provider = build("ssh", ProviderContext("conn_1", "hr-test", str(tmp_path)), filled)
        assert isinstance(provider, SshProvider)
        found = {name: host.link.target for name, host in provider._hosts.items()}
        assert {name: (target.user, target.port) for name, target in found.items()} == {
            "192.0.2.1": ("ubuntu", 22),
            "gpu-1.example": ("root", 2200),
            "2001:db8::1": ("ubuntu", 22),
        }
        assert {(host.price_usd_hr, host.slots) for host in provider._hosts.values()} == {(Decimal("2.50"), 4)}
        assert provider._bastion is not None
        assert provider._bastion.target.address == "192.0.2.9:22"

    @pytest.mark.parametrize("entry", ["-oProxyCommand=x", "a b", "root@", "host:port", "user name@host", "a;b"])
    def test_takes_no_host_that_is_none(self, entry: str) -> None:
        with pytest.raises(InvalidRequest, match=r"fields\.hosts"):
            check_fields(backend_of("ssh"), {"private_key": "canary", "hosts": [entry]})

    def test_a_host_may_have_all_of_its_own(self, tmp_path: Path) -> None:
        host = {
            "hostname": "192.0.2.1", "port": 2222, "user": "root", "private_key": "own canary", "cpu_slots": "3",
            "host_key": "ssh-ed25519 AAAA", "price_usd_hr": "0.125", "address": "gpu-1.example",
        }  # fmt: skip
        filled = check_fields(backend_of("ssh"), {"private_key": "canary", "hosts": [host, "192.0.2.2"]})
        context = ProviderContext("conn_1", "hr-test", str(tmp_path), fleet_networks=("192.0.2.0/24",))
        provider = build("ssh", context, filled)
        assert isinstance(provider, SshProvider)
        own, plain = provider._hosts.values()
        assert (own.slots, own.price_usd_hr, own.address) == (3, Decimal("0.125"), "gpu-1.example")
        assert (own.link.target.port, own.link.target.user) == (2222, "root")
        assert own.link.target.private_key.get_secret_value() == "own canary"
        assert own.link.host_key == "ssh-ed25519 AAAA"
        assert (plain.slots, plain.address, plain.link.target.port) == (1, "192.0.2.2", 22)
        assert provider._options.allowed_networks == ("192.0.2.0/24",)
