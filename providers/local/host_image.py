"""Packs a tree of this machine's files as a docker-archive, which `docker load` and `podman load` both read."""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from providers.local.container_flags import Setup
from providers.local.host_tree import HostTreeError, Tree, host_tree
from providers.local.process import clean_environment, run_blocking

HOST_IMAGE = "localhost/headrace/host:latest"
PROBE_IMAGE = "localhost/headrace/probe:v1"
_LOAD_SECONDS = 300
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_host_image(
    setup: Setup, name: str = HOST_IMAGE, *, with_python: bool = False, extra: Sequence[Path] = ()
) -> str:
    """Makes an image of this machine's programs and loads it into the engine; its name. Blocks for seconds.

    Raises:
        HostTreeError: this machine lacks a program that the image needs, or the engine does not take the image.
    """
    load(setup, name, host_tree(with_python=with_python, extra=extra))
    return name


def load(setup: Setup, name: str, tree: Tree) -> None:
    """Packs a tree and loads it into the engine.

    Raises:
        HostTreeError: it cannot be packed, or the engine does not take it.
    """
    environment = clean_environment(dict(setup.environment))
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as directory:
        archive = Path(directory, "image.tar")
        try:
            write_archive(archive, name, tree, machine=platform.machine())
        except OSError as error:
            raise HostTreeError(f"the image {name} cannot be written: {error}") from error
        arguments = [*setup.argv, "load", "--quiet", "--input", str(archive)]
        answer = run_blocking(arguments, environment=environment, timeout=_LOAD_SECONDS)
    if answer.returncode != 0:
        raise HostTreeError(f"{setup.name} does not take the image {name}: {answer.last_line}")


def write_archive(
    target: Path,
    name: str,
    tree: Tree,
    *,
    machine: str,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> str:
    """Writes the archive to `target` and returns the image id (`sha256:` and 64 hex digits).

    `machine` is the kernel's name of the architecture (`x86_64`). Times and owners are fixed, so the same files give
    the same id.
    """
    layer = target.with_suffix(".layer")
    try:
        _write_layer(layer, tree)
        digest = "sha256:" + _hash_file(layer)
        config = json.dumps(
            {
                "architecture": _ARCHITECTURES.get(machine, machine),
                "os": "linux",
                "created": "1970-01-01T00:00:00Z",
                "config": {
                    "Cmd": list(command) or None,
                    "Env": [f"{key}={value}" for key, value in {"PATH": _PATH, **(environment or {})}.items()],
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [digest]},
                "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "headrace host image"}],
            }
        ).encode()
        image_id = hashlib.sha256(config).hexdigest()
        manifest = json.dumps([{"Config": f"{image_id}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
        with tarfile.open(target, "w") as archive:
            archive.add(layer, "layer.tar", filter=_plain)
            _add_bytes(archive, f"{image_id}.json", config)
            _add_bytes(archive, "manifest.json", manifest)
    finally:
        layer.unlink(missing_ok=True)
    return "sha256:" + image_id


def _write_layer(target: Path, tree: Tree) -> None:
    with tarfile.open(target, "w") as layer:
        for directory in sorted(tree.directories - tree.links.keys()):
            member = tarfile.TarInfo(directory)
            member.type = tarfile.DIRTYPE
            member.mode = 0o1777 if directory in ("tmp", "var/tmp") else 0o700 if directory == "root" else 0o755
            layer.addfile(member)
        for path, destination in sorted(tree.links.items()):
            member = tarfile.TarInfo(path)
            member.type = tarfile.SYMTYPE
            member.linkname = destination
            layer.addfile(member)
        for path, text in sorted(tree.texts.items()):
            _add_bytes(layer, path, text.encode())
        for path, source in sorted(tree.files.items()):
            if path not in tree.texts:
                layer.add(source, path, recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Root's, without a time: identical files give identical archives. Set-id bits stay on this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = member.mode & 0o777
    return member


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(content))


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
