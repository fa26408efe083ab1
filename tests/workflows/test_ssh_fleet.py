"""An SSH fleet from the form to a finished job, with a real sshd and podman on the host."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cli
from api.app import create_app
from providers.local.host_image import HOST_IMAGE
from tests.api.conftest import served
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


async def test_a_fleet_is_added_by_command_and_its_host_that_was_installed_anew_is_let_in_again(
    fleet: RunningFleet,
    sqlite_url: str,
    temporal_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = fleet.hosts["two"]

    async def headrace(*words: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = await asyncio.to_thread(cli.run, ["fleet", *words, "--json"])
        # The worker logs to the same place.
        (answer,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("{"))
        return code, json.loads(answer)

    def host_in(row: Any) -> Any:
        (found,) = row["verification"]["hosts"]
        return found

    async with control_plane(sqlite_url, temporal_address, fleet_networks=f"{host.address}/32") as plane:
        with served(create_app(plane.services)) as url:
            monkeypatch.setenv("HEADRACE_API_URL", url)
            monkeypatch.setenv("HEADRACE_API_KEY", plane.client.headers["Authorization"].removeprefix("Bearer "))
            key = str(fleet.root / "key")
            code, refused = await headrace("add", "--host", f"root@{host.address}:2222", "--key", key)
            assert (code, refused["hosts"][0]["status"]) == (2, "unreachable")
            (tmp_path / "fleet.yaml").write_text(
                f"name: lab\nprivate_key_file: {key}\nhosts:\n- hostname: {host.address}\n  user: root\n"
            )
            code, added = await headrace("add", "--file", str(tmp_path / "fleet.yaml"))
            first = host_in(added)
            assert (code, first["usable"], first["engine"].split()[0]) == (0, True, "podman")
            host.power_off()
            host.new_key()
            host.start()
            code, probed = await headrace("probe", "lab")
            assert (code, host_in(probed)["status"], host_in(probed)["host_key_fingerprint"]) == (2, "host_key", None)
            assert (await headrace("edit", "lab", "--forget-host-key", host.address))[0] == 0
            code, again = await headrace("probe", "lab")
            assert (code, host_in(again)["usable"]) == (0, True)
            assert host_in(again)["host_key_fingerprint"] != first["host_key_fingerprint"]
