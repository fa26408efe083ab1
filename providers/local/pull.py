"""Pulls an image: its progress as lines, its credentials through a file that only this pull reads."""

import asyncio
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from domain.errors import ImagePullFailed
from domain.images import ImageReference
from domain.spec import RegistryCredential
from providers.base import Progress
from providers.local.container_flags import Setup
from providers.local.images import PrivateRepositories, auth_file
from providers.local.process import clean_environment, stream

_QUIET_SECONDS = 10.0
"""A pull that prints nothing for so long is reported as still going: a layer may take minutes."""
_MAX_LINES = 300
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


async def pull(
    setup: Setup,
    reference: ImageReference,
    credential: RegistryCredential | None,
    directory: Path,
    private: PrivateRepositories,
    progress: Progress,
) -> None:
    """Brings the image onto this machine, or asks its registry whether this credential may read it.

    Raises:
        ImagePullFailed: with the engine's last line, without any secret.
    """
    newly_private = credential is not None and private.add(reference)
    credentials = Path(tempfile.mkdtemp(prefix="pull-", dir=directory))
    started = time.monotonic()
    try:
        await progress(f"pulling {reference}")
        code, last = await _watch(_arguments(setup, reference, credential, credentials), setup, reference, progress)
    finally:
        shutil.rmtree(credentials, ignore_errors=True)
    if code != 0:
        if newly_private:
            private.discard(reference)
        secret = credential.password.get_secret_value() if credential else ""
        raise ImagePullFailed(f"cannot pull {reference}: {last.replace(secret, '***') if secret else last}")
    await progress(f"pulled {reference} in {time.monotonic() - started:.1f} s")


def _arguments(
    setup: Setup, reference: ImageReference, credential: RegistryCredential | None, credentials: Path
) -> list[str]:
    content = auth_file(reference, credential, docker=setup.is_docker)
    # The directory is 0700; docker reads `config.json` of a directory, podman any file.
    (credentials / "config.json").write_text(content)
    if setup.is_docker:
        return [*setup.argv, f"--config={credentials}", "pull", str(reference)]
    return [*setup.argv, "pull", f"--authfile={credentials / 'config.json'}", str(reference)]


async def _watch(arguments: list[str], setup: Setup, reference: ImageReference, progress: Progress) -> tuple[int, str]:
    """The exit code and the last line."""
    # Without its garbage collector podman is quicker to start, and has no bound while it unpacks gigabytes.
    environment = clean_environment({key: value for key, value in setup.environment if key != "GOGC"})
    async with stream(arguments, environment=environment) as process:
        last = await follow(process.stdout.readline, reference, progress)
        return await process.wait(), last


async def follow(read_line: Callable[[], Awaitable[bytes]], reference: ImageReference, progress: Progress) -> str:
    """Reports what a pull prints until its end, and that it still goes on while it prints nothing; the last line."""
    last, lines, started = "no message", 0, time.monotonic()
    reading: asyncio.Future[bytes] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(read_line())
            done, _ = await asyncio.wait([reading], timeout=_QUIET_SECONDS)
            if not done:
                await progress(f"still pulling {reference} ({time.monotonic() - started:.0f} s)")
                continue
            raw, reading = reading.result(), None
            if not raw:
                return last
            line = _CONTROL.sub("", raw.decode("utf-8", "replace")).strip()[:500]
            if line:
                last, lines = line, lines + 1
                if lines <= _MAX_LINES:
                    await progress(line)
    finally:
        if reading is not None:
            reading.cancel()
