"""Times as clients write them: RFC 3339 with a zone. Pydantic would take numbers and times without a zone too."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def moment(value: Any) -> datetime:
    """The moment, in UTC; digits beyond microseconds are cut off.

    Raises:
        ValueError: it is no such text, or names no time that there is.
    """
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
        raise ValueError("must be a time of RFC 3339 with its zone, such as 2027-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("is no time that there is") from None


def is_on_a_minute(text: str) -> bool:
    """Whether such a text names an exact UTC minute, to the last of its digits."""
    found = _RFC_3339.fullmatch(text)
    return found is not None and not (found[1] or "").strip("0") and not moment(text).second


Moment = Annotated[datetime, BeforeValidator(moment)]
