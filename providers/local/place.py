"""Where an engine is: how its command line is run there, and how an image gets there."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import psutil

from domain.images import ImageReference
from providers.base import Progress
from providers.local.container_flags import Setup
from providers.local.engine import Launch
from providers.local.images import PrivateRepositories
from providers.local.process import Completed, clean_environment, run
from providers.local.pull import pull


class Place(Protocol):
    """A machine with a container engine: this one, or one behind SSH."""

    @property
    def booted_at(self) -> datetime:
        """When the machine started: what was running before it has ended."""
        ...

    @property
    def starts_at_once(self) -> int:
        """More starts at once than this make the engine slower, not faster: they wait for each other's locks."""
        ...

    async def run(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout: float) -> Completed:
        """Runs a command to its end, with `environment` on top of the machine's own; the time-out is in seconds.

        Raises:
            CommandTimeout, OSError, ProviderError: it gave no answer.
        """
        ...

    async def still_wanted(self, launch: Launch) -> bool:
        """Whether the attempt was not terminated meanwhile."""
        ...

    async def is_private(self, reference: ImageReference) -> bool:
        """Whether the machine has read that repository with credentials: its copy is then no permission."""
        ...

    async def pull(self, setup: Setup, reference: ImageReference, launch: Launch, progress: Progress) -> None:
        """Brings the image onto the machine, or asks its registry whether the launch's credential may read it.

        Raises:
            ImagePullFailed: with the engine's last line, without any secret.
        """
        ...


class Here:
    """This machine."""

    def __init__(self, private: PrivateRepositories) -> None:
        self._private = private
        self.booted_at = datetime.fromtimestamp(psutil.boot_time(), UTC)
        self.starts_at_once = (psutil.cpu_count() or 1) + 2

    async def run(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout: float) -> Completed:
        return await run(argv, environment=clean_environment(environment), timeout=timeout)

    async def still_wanted(self, launch: Launch) -> bool:
        return launch.still_wanted()

    async def is_private(self, reference: ImageReference) -> bool:
        return reference in self._private

    async def pull(self, setup: Setup, reference: ImageReference, launch: Launch, progress: Progress) -> None:
        await pull(setup, reference, launch.registry, launch.directory, self._private, progress)
