"""The public key that a job's SSH access is for. A private one is refused here: it does not leave this machine."""

from pathlib import Path
from typing import Any

from commands.job_file import usage
from domain.errors import InvalidRequest

_MOST_CHARACTERS = 32_768
"""More than any key has, and enough to say so."""
_PUBLIC = "give the public key: the file that ends in .pub, or its line"


def key_of(given: str) -> str:
    """The text of the key that `--ssh-key` names: the text itself, which has spaces, or that of a file.

    Raises:
        CommandError: the file cannot be read. Nothing given is repeated: it may be a private key.
    """
    if " " in given.strip() or "\n" in given:
        return given
    try:
        with Path(given).expanduser().open(encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS)
    except UnicodeDecodeError:
        raise usage("--ssh-key: the file is no text", _PUBLIC) from None
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no path"
        raise usage(f"--ssh-key: the file cannot be read: {why}", _PUBLIC) from None


def check_access(body: dict[str, Any]) -> bool:
    """Whether a request asks for SSH; the key in it becomes the line that the API would make of it.

    Raises:
        CommandError: it is no public key; its text is not repeated.
    """
    access = body.get("access")
    given = access.get("ssh_public_key") if isinstance(access, dict) else None
    if not isinstance(access, dict) or not isinstance(given, str):
        # What is of another shape, the API says.
        return False
    access["ssh_public_key"] = _line(given)
    return True


def _line(text: str) -> str:
    # Only who asks for SSH waits for cryptography to load.
    from domain.ssh_keys import normalise

    try:
        return normalise(text)
    except InvalidRequest as error:
        raise usage(f"access.ssh_public_key: {error.message}", _PUBLIC) from None
