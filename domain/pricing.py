"""What volume storage may cost, and from when on a new price holds."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal

from domain.errors import InvalidRequest

LEAST = Decimal("1e-18")
MOST = Decimal("1e10")
MAX_CHARACTERS = 64
MAX_DIGITS = 38
MAX_EXPONENT = 128

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_EXACT = Context(prec=2 * MAX_EXPONENT)


def storage_rate(literal: str, field: str) -> Decimal:
    """USD per GiB-hour from a JSON number as it was written: exact, never through a binary float.

    Raises:
        InvalidRequest: it breaks a bound; `limit` names which.
    """

    def refuse(message: str, limit: object) -> InvalidRequest:
        return InvalidRequest(f"{field}: {message}", field=field, limit=limit)

    if len(literal) > MAX_CHARACTERS:
        raise refuse(f"has more than {MAX_CHARACTERS} characters", MAX_CHARACTERS)
    match = _NUMBER.fullmatch(literal)
    if match is None:
        raise refuse("must be a number", None)
    _, whole, fraction, exponent = match.groups()
    if len(whole) + len(fraction or "") > MAX_DIGITS:
        raise refuse(f"has more than {MAX_DIGITS} digits", MAX_DIGITS)
    if abs(int(exponent or 0)) > MAX_EXPONENT:
        raise refuse(f"has an exponent beyond {MAX_EXPONENT}", MAX_EXPONENT)
    value = Decimal(literal)
    if value < LEAST:
        raise refuse(f"must be at least {LEAST:f}", f"{LEAST:f}")
    if value > MOST:
        raise refuse(f"must be at most {MOST:f}", f"{MOST:f}")
    if _EXACT.remainder(value, LEAST):
        raise refuse("must have at most 18 decimal places", 18)
    return _EXACT.normalize(value)


def effective_at(now: datetime) -> datetime:
    """The next UTC hour: never now, so that no hour has two prices."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour + timedelta(hours=1)
