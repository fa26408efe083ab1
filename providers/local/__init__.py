"""Jobs on this machine: docker, podman, or a sandbox of bubblewrap."""

from providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
