"""A .env as `deploy/make-env` writes it, and the compose file filled from it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import compose


@pytest.fixture(scope="session")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deploy") / ".env"
    subprocess.run([compose.ROOT / "deploy" / "make-env", path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def environment(env_file: Path) -> dict[str, str]:
    return compose.read_env(env_file)


@pytest.fixture(scope="session")
def stack(environment: dict[str, str]) -> dict[str, Any]:
    return compose.load(environment)
