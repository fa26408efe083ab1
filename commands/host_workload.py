"""The image of the demo: this machine's own programs and Python, so that no registry is needed."""

from collections.abc import Callable

from providers.local.host_image import HOST_IMAGE


def prepare_image(say: Callable[[str], None]) -> str:
    """The name of an image with Python."""
    return HOST_IMAGE
