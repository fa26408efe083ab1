"""Images made of this machine's own programs: complete, repeatable, without what does not belong into them."""

import platform
import sys
import tarfile
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.catalog import BY_NAME, Gpu
from providers.local.gpus import HostGpu, choose, parse
from providers.local.host_image import build_host_image, write_archive
from providers.local.host_tree import HostTreeError, host_tree, minimal_tree
from tests.providers.local_support import podman, setup_of


def members(archive: Path, directory: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive) as outer:
        outer.extract("layer.tar", directory, filter="data")
    with tarfile.open(directory / "layer.tar") as layer:
        listed = layer.getmembers()
    assert len({member.name for member in listed}) == len(listed)
    return {member.name: member for member in listed}


class TestAnArchive:
    def test_of_the_same_files_has_the_same_id(self, tmp_path: Path) -> None:
        ids = {
            write_archive(tmp_path / f"{n}.tar", "localhost/x:1", minimal_tree(), machine="x86_64") for n in range(2)
        }
        assert len(ids) == 1

    def test_names_no_path_twice_and_has_no_set_id_bits(self, tmp_path: Path) -> None:
        write_archive(tmp_path / "a.tar", "localhost/x:1", host_tree(), machine=platform.machine())
        found = members(tmp_path / "a.tar", tmp_path)
        assert {"etc/passwd", "usr/bin/bash", "usr/bin/curl", "tmp", "workspace"} <= set(found)
        assert not [name for name, member in found.items() if member.isfile() and member.mode & 0o7000]

    def test_of_a_program_that_is_not_here_is_refused(self) -> None:
        with pytest.raises(HostTreeError, match="no-such-program"):
            minimal_tree("no-such-program")


@pytest.mark.containers
class TestAnImage:
    def test_with_python_runs_it_with_what_was_added(self, tmp_path: Path, podman_data: Path) -> None:
        (tmp_path / "extra").mkdir()
        (tmp_path / "extra" / "greeting.py").write_text("TEXT = 'from the added directory'\n")
        setup, name = setup_of(podman_data), f"localhost/headrace/test:{uuid.uuid4().hex[:8]}"
        build_host_image(setup, name, with_python=True, extra=[tmp_path / "extra"])
        program = "import greeting, json, sqlite3, ssl, sys; print(greeting.TEXT, sys.version_info[:2])"
        container = f"headrace-test-{uuid.uuid4().hex[:8]}"
        try:
            ran = podman(
                setup, "run", f"--name={container}", "--network=none", f"--env=PYTHONPATH={tmp_path / 'extra'}", name,
                "python3", "-c", program,
            )  # fmt: skip
        finally:
            podman(setup, "rm", "--force", container)
            podman(setup, "rmi", "--force", name)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == f"from the added directory {sys.version_info[:2]}\n"


L4 = BY_NAME["nvidia-l4-24gb"]
assert isinstance(L4, Gpu)


class TestTheDriversAnswer:
    def test_names_the_gpus_of_the_catalog(self) -> None:
        text = "NVIDIA H100 80GB HBM3, 81559, GPU-1\nNVIDIA L4, 23034, GPU-2\n"
        assert [(gpu.id, gpu.model.name) for gpu in parse(text)] == [
            ("GPU-1", "nvidia-h100-80gb"),
            ("GPU-2", "nvidia-l4-24gb"),
        ]

    @pytest.mark.parametrize(
        "text", ["", "No devices were found\n", "NVIDIA L4, [N/A], GPU-2\n", "NVIDIA L4, 23034, \n", "Voodoo 2, 8, G\n"]
    )
    def test_that_is_not_understood_is_no_gpu(self, text: str) -> None:
        assert list(parse(text)) == []

    @given(st.text())
    def test_never_breaks_the_reader(self, text: str) -> None:
        list(parse(text))

    @given(st.sets(st.integers(0, 7)), st.integers(1, 8))
    def test_yields_only_devices_that_nobody_holds(self, held: set[int], count: int) -> None:
        gpus = [HostGpu(f"GPU-{n}", L4) for n in range(8)]
        chosen = choose(gpus, L4.name, count, {f"GPU-{n}" for n in held})
        if count > 8 - len(held):
            assert chosen is None
        else:
            assert chosen is not None
            assert len(set(chosen)) == count
            assert not set(chosen) & {f"GPU-{n}" for n in held}
