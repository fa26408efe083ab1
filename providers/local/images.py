"""Image references as the engines get them, and which repositories took a password to read."""

import hashlib
from pathlib import Path

from domain import images
from domain.errors import ImagePullFailed, InvalidRequest
from domain.registry_auth import DEFAULT_REGISTRY, engine_config
from domain.spec import RegistryCredential


def qualify(text: str) -> images.ImageReference:
    """The reference with its registry named, and without a tag where a digest says more.

    A short name would be looked up in whatever registries the machine's configuration lists, or be taken for the
    prefix of an image id.

    Raises:
        ImagePullFailed: it is no image reference.
    """
    try:
        parsed = images.parse(text)
    except InvalidRequest as error:
        raise ImagePullFailed(error.message) from error
    repository = parsed.repository
    if parsed.registry is None and "/" not in repository:
        repository = f"library/{repository}"
    tag = None if parsed.digest else parsed.tag or "latest"
    return images.ImageReference(parsed.registry or DEFAULT_REGISTRY, repository, tag, parsed.digest)


def must_ask(reference: images.ImageReference) -> bool:
    """Whether a registry stands behind the name: `localhost/` without a port is what was built on this machine."""
    return reference.registry != "localhost"


def auth_file(reference: images.ImageReference, credential: RegistryCredential | None, *, docker: bool) -> str:
    """The JSON that both engines read credentials from: for the image's own registry, or for none at all.

    Without a credential the file is empty, not absent: the operator's own logins are not the job's to use.
    """
    return engine_config(reference, credential, docker=docker)


class PrivateRepositories:
    """Remembers which repositories were read with credentials, by one empty file for each.

    A copy on this machine proves that somebody could read the image, not that this job's owner may: their images are
    asked for at the registry every time.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __contains__(self, reference: images.ImageReference) -> bool:
        return self._mark(reference).exists()

    def add(self, reference: images.ImageReference) -> bool:
        """Whether it is new. Called before the pull: a crash in between must not leave an unmarked copy."""
        mark = self._mark(reference)
        new = not mark.exists()
        mark.touch(mode=0o600)
        return new

    def discard(self, reference: images.ImageReference) -> None:
        self._mark(reference).unlink(missing_ok=True)

    def _mark(self, reference: images.ImageReference) -> Path:
        return self._root / hashlib.sha256(reference.name.encode()).hexdigest()
