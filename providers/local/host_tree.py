"""A root filesystem made of this machine's own programs: an image for probes, tests and the demo without a registry."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# What the agent's contract asks of an image, and what a small shell script expects next to it.
PROGRAMS = (
    "bash", "sh", "curl", "grep", "sed", "gawk", "mawk", "awk", "find", "tar", "gzip", "ps", "hostname",
    "[", "arch", "b2sum", "base32", "base64", "basename", "basenc", "cat", "chgrp", "chmod", "chown", "chroot",
    "cksum", "comm", "cp", "csplit", "cut", "date", "dd", "df", "dir", "dircolors", "dirname", "du", "echo", "env",
    "expand", "expr", "factor", "false", "fmt", "fold", "groups", "head", "hostid", "id", "install", "join", "link",
    "ln", "logname", "ls", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "mv", "nice", "nl", "nohup", "nproc",
    "numfmt", "od", "paste", "pathchk", "pinky", "pr", "printenv", "printf", "ptx", "pwd", "readlink", "realpath",
    "rm", "rmdir", "seq", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "shred", "shuf", "sleep",
    "sort", "split", "stat", "stdbuf", "stty", "sum", "sync", "tac", "tail", "tee", "test", "timeout", "touch", "tr",
    "true", "truncate", "tsort", "tty", "uname", "unexpand", "uniq", "unlink", "users", "vdir", "wc", "who", "whoami",
    "yes",
)  # fmt: skip

# glibc loads these by name at run time, so `ldd` never shows them.
_NAME_SERVICE = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
_EMPTY_DIRECTORIES = (
    "dev",
    "proc",
    "sys",
    "run",
    "root",
    "tmp",
    "var/tmp",
    "workspace",
    "home",
    "mnt",
    "usr/local/bin",
)
_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
# The standard library is wanted, not what was installed next to it: `extra` names that.
_NOT_OF_PYTHON = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "tkinter", "include", "share")
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
    "hosts": "",
}


class HostTreeError(Exception):
    """This machine lacks a program that the image needs; the message names it."""


@dataclass
class Tree:
    """A filesystem to be: paths are absolute inside of it, without the leading slash."""

    directories: set[str] = field(default_factory=set)
    files: dict[str, Path] = field(default_factory=dict)
    """Path in the tree to the file on this machine that is copied there."""
    texts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """Path in the tree to the target of the symbolic link."""

    def add_file(self, source: Path) -> None:
        """Adds a file under its own path, the links on the way to it included."""
        path = source
        for _ in range(40):
            self.add_parents(path)
            if not path.is_symlink():
                break
            inside = self._place(path)
            self.links.setdefault(inside, os.readlink(path))
            path = Path(os.path.normpath(path.parent / os.readlink(path)))
        if path.is_file():
            self.files.setdefault(self._place(path), path)

    def add_parents(self, path: Path) -> None:
        """Merged-usr links (`/lib` to `usr/lib`) stay links: a directory in their place would hide the other name."""
        parents = PurePosixPath(self._place(path)).parents
        self.directories.update(str(parent) for parent in parents if str(parent) != ".")

    def add_directory(self, root: Path, skip: Iterable[str] = ()) -> None:
        """Adds a whole directory under its own path; `skip` names directories that are left out at any depth."""
        skipped = {"__pycache__", *skip}
        for current, names, entries in os.walk(root):
            names[:] = sorted(name for name in names if name not in skipped)
            self.directories.add(self._place(Path(current)))
            self.add_parents(Path(current))
            for name in sorted(entries) + [n for n in names if os.path.islink(os.path.join(current, n))]:
                if not name.endswith((".pyc", ".a")):
                    self.add_file(Path(current, name))

    @staticmethod
    def _place(path: Path) -> str:
        """The path in the tree, with the first component resolved where the machine has it as a link into /usr."""
        parts = path.parts[1:]
        if parts and parts[0] in _MERGED and os.path.islink("/" + parts[0]):
            parts = (*Path(os.readlink("/" + parts[0])).parts, *parts[1:])
        return str(PurePosixPath(*[part for part in parts if part != "/"]))


def shared_libraries(programs: Iterable[Path]) -> set[Path]:
    """The libraries that `ldd` names for these programs or shared objects, the loader included."""
    listed = [str(program) for program in programs]
    found: set[Path] = set()
    for start in range(0, len(listed), 200):
        answer = subprocess.run(["ldd", *listed[start : start + 200]], capture_output=True, text=True, check=False)
        named = re.findall(r"(?:=>\s+|^\s+)(/\S+) \(0x", answer.stdout, re.MULTILINE)
        found |= {Path(os.path.normpath(path)) for path in named}
    return found


def find_program(name: str) -> Path | None:
    """The program in the system's own directories: user directories on PATH hold wrappers such as version shims."""
    found = shutil.which(name, path=_SYSTEM_PATH)
    return Path(found) if found else None


def minimal_tree(program: str = "true") -> Tree:
    """One program and its libraries: the least that an engine can run."""
    tree = _skeleton()
    _add_programs(tree, [program], required=(program,))
    return tree


def host_tree(*, with_python: bool = False, extra: Sequence[Path] = ()) -> Tree:
    """A tree that the agent works in: bash, curl, coreutils and more, CA certificates, name resolution.

    `with_python` adds the running interpreter and its standard library, without installed packages; `extra` are files
    or directories added under their own paths. Libraries of shared objects inside of both come along.

    Raises:
        HostTreeError: bash, curl or a coreutil is missing on this machine.
    """
    tree = _skeleton()
    _add_programs(tree, PROGRAMS, required=("bash", "sh", "curl", "base64", "cat", "sed", "grep"))
    for bundle in _CA_BUNDLES:
        if os.path.exists(bundle):
            tree.add_file(Path(bundle))
    prefixes = [Path(sys.base_prefix)] if with_python else []
    for path in [*prefixes, *extra]:
        if path.is_dir():
            tree.add_directory(path, skip=_NOT_OF_PYTHON if path in prefixes else ())
        else:
            tree.add_file(path)
    if with_python:
        _add_interpreter(tree)
    objects = [source for place, source in tree.files.items() if ".so" in PurePosixPath(place).name]
    for library in shared_libraries(objects):
        tree.add_file(library)
    return tree


def _skeleton() -> Tree:
    tree = Tree()
    for directory in _EMPTY_DIRECTORIES:
        tree.directories |= {directory, *(str(p) for p in PurePosixPath(directory).parents if str(p) != ".")}
    tree.directories.add("etc")
    for name, text in _ETC.items():
        tree.texts[f"etc/{name}"] = text
    for name in _MERGED:
        if os.path.islink("/" + name):
            tree.links[name] = os.readlink("/" + name)
            tree.directories.add(str(PurePosixPath(os.readlink("/" + name).lstrip("/"))))
    return tree


def _add_programs(tree: Tree, names: Iterable[str], required: Sequence[str]) -> None:
    found = {name: path for name in names if (path := find_program(name)) is not None}
    missing = [name for name in required if name not in found]
    if missing:
        raise HostTreeError(f"cannot build an image from this machine: it has no {', '.join(missing)}")
    for path in found.values():
        tree.add_file(path)
    libraries = shared_libraries(path.resolve() for path in found.values())
    directories = {library.parent for library in libraries}
    libraries |= {d / name for d in directories for name in _NAME_SERVICE if (d / name).exists()}
    for library in libraries:
        tree.add_file(library)


def _add_interpreter(tree: Tree) -> None:
    """The interpreter's libraries, and `python` and `python3` on the image's PATH."""
    executable = Path(os.path.realpath(sys.executable))
    tree.add_file(executable)
    for library in shared_libraries([executable]):
        tree.add_file(library)
    for name in ("python", "python3"):
        tree.links.setdefault(f"usr/local/bin/{name}", str(executable))
