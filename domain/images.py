"""Image references, by the grammar of the distribution project.

    [host[:port]/]path[:tag][@digest]

The first component is a host when it has a dot or a colon, is `localhost`, or has an upper-case letter, which no path
may have. Otherwise the reference names no host, and the engine's default registry applies.
"""

import re
from dataclasses import dataclass

from domain.errors import InvalidRequest

MAX_NAME = 255
MAX_TAG = 128
MAX_REFERENCE = MAX_NAME + 1 + MAX_TAG + 1 + len("sha512:") + 128

_HOST_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::(?P<port>[0-9]+))?")
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*")
_TAG = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_TAG - 1}}}")
_HEX_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_IMAGE_ID = re.compile(r"[a-f0-9]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A parsed reference; `str` gives back exactly what was parsed."""

    registry: str | None
    """`host[:port]` as it was written; None when the reference names no host."""
    repository: str
    tag: str | None = None
    digest: str | None = None
    """`algorithm:hex`."""

    @property
    def has_explicit_host(self) -> bool:
        """Whether credentials can be bound to a host: they are sent to that one only."""
        return self.registry is not None

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return self.repository if self.registry is None else f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = "" if self.tag is None else f":{self.tag}"
        return self.name + tag + ("" if self.digest is None else f"@{self.digest}")


def parse(text: str, *, field: str = "container.image") -> ImageReference:
    """Reads an image reference.

    Raises:
        InvalidRequest: it is none. The message does not repeat it: a pasted URL may hold a password.
    """

    def invalid(message: str, limit: int | None = None) -> InvalidRequest:
        return InvalidRequest(f"the image reference {message}", field=field, limit=limit)

    if not text:
        raise invalid("is empty")
    if len(text) > MAX_REFERENCE:
        raise invalid(f"has {len(text)} characters, at most {MAX_REFERENCE} are allowed", MAX_REFERENCE)
    if "://" in text:
        raise invalid("must not begin with a scheme such as https://: write host/path:tag")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise invalid("may hold printable ASCII characters without spaces only")
    rest, has_digest, digest = text.partition("@")
    if has_digest:
        algorithm, _, value = digest.partition(":")
        length = _HEX_LENGTHS.get(algorithm)
        if length is None or not re.fullmatch(f"[a-f0-9]{{{length}}}", value):
            raise invalid("has a digest that is not sha256, sha384 or sha512 with its lower-case hexadecimal digits")
    registry, path = _split_host(rest)
    path, has_tag, tag = path.partition(":")
    if has_tag and not _TAG.fullmatch(tag):
        limit = MAX_TAG if len(tag) > MAX_TAG else None
        raise invalid(f"has a tag that is not 1 to {MAX_TAG} letters, digits, `_`, `.` or `-`", limit)
    if registry is not None:
        host = _HOST.fullmatch(registry)
        if host is None:
            raise invalid("has a registry host that is no host name or address with an optional port")
        if host["port"] is not None and not 0 < int(host["port"][:6]) <= 65535:
            raise invalid("has a registry port that is not 1 to 65535", 65535)
    if path != path.lower():
        raise invalid("has an upper-case letter in its path: repository names are lower case")
    if not _PATH.fullmatch(path):
        raise invalid("has a path that is not made of lower-case letters and digits, separated by `/`, `.`, `_` or `-`")
    reference = ImageReference(registry, path, tag if has_tag else None, digest if has_digest else None)
    if len(reference.name) > MAX_NAME:
        raise invalid(f"has a name of {len(reference.name)} characters, at most {MAX_NAME} are allowed", MAX_NAME)
    if registry is None and _IMAGE_ID.fullmatch(path):
        raise invalid("is an image id: only names can be pulled")
    return reference


def credential_problem(username: str, password: str) -> str | None:
    """What is wrong with a registry's user name and password, as a predicate that says which; None when nothing is.
    They become a header of HTTP, in which the first colon parts them."""
    if not username or ":" in username or not username.isprintable():
        return "username must be printable and hold no colon"
    if not password or not password.isprintable():
        return "password must be printable"
    return None


def _split_host(name: str) -> tuple[str | None, str]:
    first, slash, rest = name.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return (first, rest) if slash and is_host else (None, name)
