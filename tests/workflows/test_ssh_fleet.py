"""An SSH fleet from the form to a finished job, with a real sshd and podman on the host."""

from collections.abc import Iterator

import pytest

from providers.local.host_image import HOST_IMAGE
from tests.providers.ssh_fleet import RunningFleet, running_fleet
from tests.support.control_plane import control_plane
from tests.support.invariants import assert_invariants

pytestmark = [pytest.mark.e2e, pytest.mark.containers]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "two") as running:
        yield running


async def test_a_fleet_is_connected_and_runs_a_job_of_the_api(
    fleet: RunningFleet, sqlite_url: str, temporal_address: str
) -> None:
    host = fleet.hosts["two"]
    networks = f"{host.address}/32"
    # No public URL: agents there come by the connection.
    async with control_plane(
        sqlite_url,
        temporal_address,
        fleet_networks=networks,
        capacity_wait_seconds=30,
        provisioning_timeout_seconds=60,
    ) as plane:
        fields = {"user": "root", "private_key": fleet.private_key, "hosts": [host.address], "price_usd_hr": "1.20"}
        answer = await plane.client.post(
            "/api/compute/cloud/backends", json={"provider": "ssh", "cluster": True, "fields": fields}
        )
        assert (answer.status_code, answer.json()["state"]) == (201, "connected"), answer.text
        command = ["bash", "-c", "echo on the fleet; exit 3"]
        job_id = await plane.create(container={"image": HOST_IMAGE, "command": command})
        job = await plane.until_terminal(job_id, 120)
        assert (job["state"], job["exit_code"]) == ("failed", 3), job
        assert "on the fleet" in await plane.log_text(job_id)
        (attempt,) = await plane.attempts(job_id)
        assert attempt.connection_id == answer.json()["id"]
        await plane.until_gone(job_id)
        await assert_invariants(plane)
        assert host.podman("ps", "--all", "--quiet") == ""


async def test_the_pin_of_a_host_that_was_installed_anew_is_forgotten_by_an_administrator(
    fleet: RunningFleet, sqlite_url: str, temporal_address: str
) -> None:
    host = fleet.hosts["two"]
    path = "/api/compute/cloud/backends"
    async with control_plane(sqlite_url, temporal_address, fleet_networks=f"{host.address}/32") as plane:
        fields = {"user": "root", "private_key": fleet.private_key, "hosts": [host.address]}
        answer = await plane.client.post(path, json={"provider": "ssh", "cluster": True, "fields": fields})
        (first,) = answer.json()["verification"]["hosts"]
        assert (first["status"], first["usable"], first["engine"].split()[0]) == ("no_gpu", True, "podman")
        fleet_path = f"{path}/{answer.json()['id']}"
        (pin,) = (await plane.client.get(f"{fleet_path}/host-keys")).json()["data"]
        assert (pin["address"], pin["fingerprint"]) == (f"{host.address}:22", first["host_key_fingerprint"])
        host.power_off()
        host.new_key()
        host.start()
        (seen,) = (await plane.client.post(f"{fleet_path}/verify")).json()["verification"]["hosts"]
        assert (seen["status"], seen["usable"], seen["host_key_fingerprint"]) == ("host_key", False, None)
        refused = await plane.client.post(
            path, json={"provider": "ssh", "name": "other", "fields": {**fields, "hosts": [f"{host.address}:2222"]}}
        )
        (away,) = refused.json()["error"]["details"]["hosts"]
        assert (refused.status_code, away["status"]) == (422, "unreachable")
        await plane.client.post(f"{fleet_path}/host-keys/forget", json={"host": host.address})
        (again,) = (await plane.client.post(f"{fleet_path}/verify")).json()["verification"]["hosts"]
        assert (again["status"], again["host_key_fingerprint"] != first["host_key_fingerprint"]) == ("no_gpu", True)
