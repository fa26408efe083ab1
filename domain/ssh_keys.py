"""SSH public keys, as one line of `authorized_keys`."""

import base64
import unicodedata

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from domain.errors import InvalidRequest

MAX_CHARACTERS = 16_384
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 16_384
TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)


def normalise(text: str, *, field: str = "access.ssh_public_key") -> str:
    """The key as `type base64 comment`, with single spaces between and no line end; the comment stays as it was.

    Raises:
        InvalidRequest: it is no such key. The message never repeats the text: it may be a private key.
    """

    def invalid(message: str, limit: int | None = None) -> InvalidRequest:
        return InvalidRequest(message, field=field, limit=limit)

    if len(text) > MAX_CHARACTERS:
        raise invalid(f"the key has {len(text)} characters, at most {MAX_CHARACTERS} are allowed", MAX_CHARACTERS)
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        raise invalid("this is a private key, which must stay with you: give the public one, from the .pub file")
    if "BEGIN SSH2 PUBLIC KEY" in text or "BEGIN PUBLIC KEY" in text or "BEGIN RSA PUBLIC KEY" in text:
        raise invalid("the key is in another format: convert it with `ssh-keygen -i`, and give the one line it prints")
    lines = [line for line in text.removeprefix("\ufeff").strip().split("\n") if line.strip()]
    if not lines:
        raise invalid("the key is empty")
    if len(lines) > 1:
        raise invalid("several lines were given: exactly one key on one line is wanted", 1)
    kind, encoded, comment = [*lines[0].strip().split(None, 2), "", ""][:3]
    following = f"{encoded} {comment}".split()
    if kind not in TYPES:
        if any(word in TYPES for word in following):
            raise invalid("options before the key are not allowed: begin with the key's type")
        raise invalid(f"the key does not begin with a supported type: {', '.join(TYPES)}")
    if any(word in TYPES for word in following):
        raise invalid("several keys were given: exactly one is wanted", 1)
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in comment):
        raise invalid("the key's comment has a control character")
    problem = _problem(kind, encoded)
    if problem is not None:
        raise invalid(*problem)
    return f"{kind} {encoded} {comment}".rstrip()


def _problem(kind: str, encoded: str) -> tuple[str, int | None] | None:
    """What is wrong with the key itself, and the bound that it breaks; None when it is sound."""
    try:
        # The library forgives broken base64, sshd does not.
        if base64.b64encode(base64.b64decode(encoded, validate=True)).decode() != encoded:
            raise ValueError
        key = load_ssh_public_key(f"{kind} {encoded}".encode())
    except (ValueError, UnsupportedAlgorithm):
        return f"the {kind} key cannot be read: it is incomplete or was changed", None
    if isinstance(key, RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            return f"the RSA key has {key.key_size} bits, at least {MIN_RSA_BITS} are needed", MIN_RSA_BITS
        if key.key_size > MAX_RSA_BITS:
            return f"the RSA key has {key.key_size} bits, at most {MAX_RSA_BITS} are allowed", MAX_RSA_BITS
    return None
