"""A host as the place of a container engine: the same commands as on this machine, through its connection."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from domain.errors import ImagePullFailed
from domain.images import ImageReference
from providers.base import Progress
from providers.local.container_flags import Setup
from providers.local.engine import Launch
from providers.local.images import auth_file
from providers.local.process import CommandTimeout, Completed
from providers.local.pull import follow
from providers.ssh import scripts
from providers.ssh.leases import Leases
from providers.ssh.link import Link
from providers.ssh.settings import SshOptions

_TIMED_OUT = 124
_SECONDS = 30.0


class RemoteHost:
    """One host. How many starts go on at once is up to its connection, which has so many channels."""

    def __init__(self, link: Link, leases: Leases, options: SshOptions) -> None:
        self._link = link
        self._leases = leases
        self._options = options
        self.starts_at_once = options.channels

    @property
    def booted_at(self) -> datetime:
        return self._link.booted_at

    async def run(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout: float) -> Completed:
        answer = await self._link.run(scripts.call(argv, environment, timeout), timeout=timeout)
        if answer.returncode == _TIMED_OUT:
            raise CommandTimeout(f"{' '.join(argv[:2])} did not end within {timeout:g} s")
        return answer

    async def still_wanted(self, launch: Launch) -> bool:
        return await self._leases.is_wanted(launch.name)

    async def is_private(self, reference: ImageReference) -> bool:
        script = scripts.is_private(self._options.directory, reference.name)
        return (await self._link.run(script, timeout=_SECONDS)).returncode == 0

    async def pull(self, setup: Setup, reference: ImageReference, launch: Launch, progress: Progress) -> None:
        """The credential goes through the connection into a file that is removed with the command."""
        credential = launch.registry
        script = scripts.pull(
            self._options.directory,
            [*setup.argv, str(reference)],
            reference.name,
            auth_file(reference, credential, docker=setup.is_docker),
            self._options.pull_seconds,
            docker=setup.is_docker,
            secret=credential is not None,
        )
        await progress(f"pulling {reference}")
        code, last = await self._link.follow(script, lambda read_line: follow(read_line, reference, progress))
        if code == _TIMED_OUT:
            last = f"it took more than {self._options.pull_seconds} s"
        if code != 0:
            secret = credential.password.get_secret_value() if credential else ""
            raise ImagePullFailed(f"cannot pull {reference}: {last.replace(secret, '***') if secret else last}")
        await progress(f"pulled {reference}")
