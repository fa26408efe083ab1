"""Stacks shared by the tests of a module: starting one takes seconds, and tests here leave theirs as they found it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.host_image import HOST_IMAGE, build_host_image
from providers.local.select import select
from tests.support.stack import Stack, running_stack

ENGINES = [pytest.param("sandbox"), pytest.param("podman", marks=pytest.mark.containers)]


@pytest.fixture(scope="session")
def host_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of this machine's own programs, in podman's store."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: tests/prepare installs it")
    if subprocess.run(["podman", "image", "exists", HOST_IMAGE], check=False).returncode != 0:
        directory: Path = tmp_path_factory.mktemp("podman")
        selection = select("podman", "bridge", directory)
        assert selection.setup is not None, selection.explain()
        build_host_image(selection.setup, HOST_IMAGE)
    return HOST_IMAGE


@pytest.fixture(scope="module", params=ENGINES)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A running stack, once with each engine."""
    if request.param == "podman":
        request.getfixturevalue("host_image")
    with running_stack(request.param) as stack:
        yield stack
        assert stack.workloads() == []
