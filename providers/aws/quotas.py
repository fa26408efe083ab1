"""The account's quotas of vCPUs, read before anything is asked for. They are a help, not a gate: where they cannot be
read they are unknown, and EC2 itself says no.

A quota is of a region, a group of families and a way to rent; what is rented already is not subtracted.
"""

import asyncio
import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from domain.errors import Ambiguous, ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsOptions

_PAGE_SIZE = 100
_ON_DEMAND: Mapping[str, str] = {"p": "L-417A185B", "g": "L-DB2E81BA", "vt": "L-DB2E81BA"}
_SPOT: Mapping[str, str] = {
    "p2": "L-7212CCBC",
    "p3": "L-7212CCBC",
    "p4": "L-7212CCBC",
    "p5": "L-C4BD4855",
    "g": "L-3819A6DF",
    "vt": "L-3819A6DF",
}
_STANDARD = frozenset("acdhimrtz")
_STANDARD_ON_DEMAND, _STANDARD_SPOT = "L-1216C47A", "L-34B43A08"

QuotaValues = Mapping[str, float]
"""The vCPUs that each quota allows, by its code."""


def quota_code(machine_type: str, spot: bool) -> str | None:
    """The quota that counts the type's vCPUs; None where it is not known which does.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-on-demand-instances.html and `using-spot-limits.html`.
    """
    named = re.match(r"([a-z]+)([0-9]+)", machine_type)
    if named is None:
        return None
    family, generation = named.groups()
    if family in _STANDARD:
        return _STANDARD_SPOT if spot else _STANDARD_ON_DEMAND
    codes = _SPOT if spot else _ON_DEMAND
    return codes.get(family + generation) or codes.get(family)


def refusal_of(machine_type: str, vcpus: int, spot: bool, region: str, quotas: QuotaValues) -> str | None:
    """Why the account cannot rent the type, if it rented nothing else; None where it can, or nobody knows."""
    code = quota_code(machine_type, spot)
    allowed = quotas.get(code) if code is not None else None
    if allowed is None or vcpus <= allowed:
        return None
    return f"the quota {code} allows {allowed:g} vCPUs in {region}, {machine_type} needs {vcpus}"


class Quotas:
    """The quotas of a connection's regions, kept for a while."""

    def __init__(self, calls: AwsCalls, options: AwsOptions) -> None:
        self._calls = calls
        self._options = options
        self._known: dict[str, tuple[float, QuotaValues]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, region: str) -> QuotaValues:
        """At most `quota_seconds` old; what was known before, or nothing, where they cannot be read."""
        async with self._locks[region]:
            read_at, known = self._known.get(region, (-math.inf, {}))
            if time.monotonic() - read_at > self._options.quota_seconds:
                with contextlib.suppress(ProviderError):
                    known = await self._read(region)
                self._known[region] = (time.monotonic(), known)
            return known

    async def _read(self, region: str) -> QuotaValues:
        what = f"quotas in {region}"
        found = await self._calls.pages(
            "service-quotas", region, "list_service_quotas", "Quotas", what, ServiceCode="ec2", MaxResults=_PAGE_SIZE
        )
        return _values(found, what)


def _values(found: Iterable[Mapping[str, Any]], what: str) -> QuotaValues:
    try:
        values = {str(item["QuotaCode"]): float(item["Value"]) for item in found}
    except (KeyError, TypeError, ValueError) as error:
        raise Ambiguous(f"{what}: an unreadable quota ({type(error).__name__})") from None
    return {code: value for code, value in values.items() if math.isfinite(value)}
