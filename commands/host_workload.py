"""The image of the demo: this machine's own programs and Python, loaded into its engine without a registry."""

import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

from commands.exits import CommandError, ExitCode
from commands.processes import load_settings
from providers.local.container_flags import Setup
from providers.local.host_image import write_archive
from providers.local.host_tree import HostTreeError, host_tree
from providers.local.process import Completed, clean_environment, run_blocking
from providers.local.select import select

_LOAD_SECONDS = 300


def demo_image() -> str:
    """Its name says which Python is in it, so that another one makes another image."""
    return f"localhost/headrace/python:{platform.python_version()}"


def prepare_image(data_dir: Path, say: Callable[[str], None]) -> str:
    """Makes sure that whatever runs workloads here has the image; its name.

    Raises:
        CommandError: nothing here can run a workload, or the image cannot be made.
    """
    settings = load_settings()
    selection = select(settings.local_engine, settings.local_network, data_dir / "local")
    name = demo_image()
    if selection.name is None:
        raise CommandError(f"nothing here can run a workload: {selection.explain()}", code=ExitCode.STACK_FAILED)
    if selection.setup is None:
        if selection.rejected:
            say("no container engine works here:")
        for engine, reason in dict.fromkeys(selection.rejected):
            say(f"  {engine}: {reason}")
        say("the job runs in a sandbox, with this machine's programs; the image is not used, limits are not enforced")
    elif _call(selection.setup, "image", "inspect", name).returncode == 0:
        say(f"the job runs in {selection.name}, in the image {name}")
    else:
        say(f"the job runs in {selection.name}; making the image {name} of this machine's programs and Python")
        _load(selection.setup, name)
    return name


def _load(setup: Setup, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as directory:
        archive = Path(directory, "image.tar")
        try:
            write_archive(archive, name, host_tree(with_python=True), machine=platform.machine())
        except (HostTreeError, OSError) as error:
            raise CommandError(f"the image cannot be made: {error}", code=ExitCode.STACK_FAILED) from None
        answer = _call(setup, "load", "--quiet", "--input", str(archive))
    if answer.returncode != 0:
        raise CommandError(f"{setup.name} did not take the image: {answer.last_line}", code=ExitCode.STACK_FAILED)


def _call(setup: Setup, *arguments: str) -> Completed:
    environment = clean_environment(dict(setup.environment))
    return run_blocking([*setup.argv, *arguments], environment=environment, timeout=_LOAD_SECONDS)
