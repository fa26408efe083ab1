"""A real registry of container images on this machine, which wants a password."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from domain.spec import RegistryCredential

USER, PASSWORD = "robot", 'pa:ss "word" 41c7'
RIGHT = RegistryCredential(username=USER, password=SecretStr(PASSWORD))
WRONG = RegistryCredential(username=USER, password=SecretStr("canary-wrong-8d03"))


@dataclass(frozen=True)
class Registry:
    """`root` holds its files; `registries.conf` there lets podman speak plain HTTP to it."""

    host: str
    root: Path

    def image(self, name: str) -> str:
        return f"{self.host}/{name}"


@contextmanager
def serving(root: Path, address: str = "127.0.0.1") -> Iterator[Registry]:
    """A registry for `USER` alone, at an address of this machine."""
    if shutil.which("docker-registry") is None or shutil.which("htpasswd") is None:
        pytest.skip("docker-registry or htpasswd is not installed: tests/prepare installs them")
    subprocess.run(
        ["htpasswd", "-Bic", str(root / "users"), USER], input=PASSWORD.encode(), check=True, capture_output=True
    )
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
    configuration = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(root / "images")}},
        "http": {"addr": f"{address}:{port}"},
        "auth": {"htpasswd": {"realm": "tests", "path": str(root / "users")}},
    }
    (root / "registry.yml").write_text(json.dumps(configuration))
    (root / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}:{port}"\ninsecure = true\n')
    process = subprocess.Popen(["docker-registry", "serve", str(root / "registry.yml")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            try:
                assert httpx.get(f"http://{address}:{port}/v2/").status_code == 401
                break
            except httpx.TransportError:
                time.sleep(0.01)
        yield Registry(f"{address}:{port}", root)
    finally:
        process.terminate()
        process.wait()
