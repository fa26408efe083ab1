"""Takes secrets out of what a backend says: it may repeat a whole request in its complaint, in any encoding."""

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "***"
# A shorter core of base64 could be a part of anything.
_SHORTEST_ENCODED = 6


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of `secrets`, however they are written in it."""
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    # The longest first: one form can hold another.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(secret: str) -> set[str]:
    once = _in_json({secret})
    forms = {secret, repr(secret)[1:-1], *once, *_in_json(once)}
    forms |= {quote(secret), quote(secret, safe=""), quote_plus(secret), secret.encode().hex()}
    for shift in range(3):
        core = _base64_core(secret.encode(), shift)
        if len(core) >= _SHORTEST_ENCODED:
            forms |= {core, core.replace("+", "-").replace("/", "_")}
    return forms


def _in_json(texts: set[str]) -> set[str]:
    return {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in texts for ascii_only in (True, False)}


def _base64_core(raw: bytes, shift: int) -> str:
    """What base64 of `raw` looks like when it begins `shift` bytes into a group of three, whatever stands around it
    (`user:password` of a basic authentication, or a document)."""
    encoded = base64.b64encode(b"\0" * shift + raw).decode()
    return encoded[-(-shift * 4 // 3) : (shift + len(raw)) * 8 // 6]
