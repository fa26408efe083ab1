"""How often a key may call, and how often an address may fail to authenticate: token buckets of this process.

Every API process counts for itself: a limit is per process, not for all of them together. Agents are not limited here.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from domain.errors import TooManyRequests

MAX_BUCKETS = 10_000
"""Of each kind. The one that was used longest ago is dropped, and would begin anew as a full one."""
MAX_WAIT_SECONDS = 5
"""Clients sleep for as long as they are told: what says more than this would stop them."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """Lets each name through `per_second` times a second, and `burst` times at once; 0 per second is no limit."""

    def __init__(self, per_second: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._per_second, self._burst, self._monotonic = per_second, burst, monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def knows(self, name: str) -> bool:
        return name in self._buckets

    def take(self, name: str) -> int | None:
        """Takes one token. None when there was one, else the whole seconds after which there will be, at most 5."""
        if not self._per_second:
            return None
        now = self._monotonic()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(self._burst, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return None
        return min(MAX_WAIT_SECONDS, max(1, math.ceil((1 - bucket.tokens) / self._per_second)))


class RateLimits:
    """The limits of one API process. Keys go by the hashes of their tokens: the database is not asked first."""

    def __init__(
        self,
        *,
        per_second: float,
        burst: int,
        failures_per_second: float,
        failures_burst: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._keys = TokenBuckets(per_second, burst, monotonic)
        self._failures = TokenBuckets(failures_per_second, failures_burst, monotonic)

    def request(self, key_hash: str) -> None:
        """Counts a request with a key that was valid before; others cost nothing here, so that none of them can push a
        valid one out of the memory.

        Raises:
            TooManyRequests: the key's bucket is empty.
        """
        if self._keys.knows(key_hash):
            self._count(key_hash)

    def authenticated(self, key_hash: str) -> None:
        """Counts a key's first request, which `request` let through."""
        if not self._keys.knows(key_hash):
            self._count(key_hash)

    def failure(self, address: str) -> None:
        """Counts a request without a valid key. Requests with one are answered whatever their neighbours do: a whole
        company may stand behind one address.

        Raises:
            TooManyRequests: the address has failed too often.
        """
        wait = self._failures.take(address)
        if wait is not None:
            raise TooManyRequests("too many requests without a valid key from this address", retry_after_seconds=wait)

    def _count(self, key_hash: str) -> None:
        wait = self._keys.take(key_hash)
        if wait is not None:
            raise TooManyRequests("too many requests with this API key", retry_after_seconds=wait)
