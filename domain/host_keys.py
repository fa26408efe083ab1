"""Keys that hosts show: by what people know one, and how one is written."""

import base64
import binascii
import hashlib

MAX_CHARACTERS = 16_384


def fingerprint(key: str) -> str | None:
    """`SHA256:...` of a public key in OpenSSH's form, as `ssh-keygen -l` shows it; None of what is no key."""
    words = key.split()
    if len(words) < 2:
        return None
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def address_of(hostname: str, port: int) -> str:
    """By what a pinned key is kept: `host:port`, an IPv6 address in brackets."""
    return f"[{hostname}]:{port}" if ":" in hostname else f"{hostname}:{port}"
