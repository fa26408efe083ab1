"""What an organization's webhooks can be told, and how a delivery proves where it comes from."""

import hashlib
import hmac
import random
from datetime import datetime, timedelta
from enum import StrEnum

MOST_TRIES = 15
_LONGEST_PAUSE_SECONDS = 4 * 3600.0


class NoticeType(StrEnum):
    """Types of events. Receivers must ignore the ones they do not know."""

    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_TERMINATED = "job.terminated"
    BUDGET_THRESHOLD_REACHED = "budget.threshold_reached"
    BUDGET_EXHAUSTED = "budget.exhausted"
    BUDGET_OVERSPENT = "budget.overspent"
    TEST = "webhook.test"
    """Sent on request only, whatever the webhook's filter says."""


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up after `MOST_TRIES`; it can be sent again on request."""


def signature(secret: str, moment: datetime, body: bytes) -> str:
    """The value of `Headrace-Signature`: `t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">`."""
    timestamp = int(moment.timestamp())
    mac = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


def retry_at(now: datetime, tries: int, first_pause_seconds: float, jitter: random.Random) -> datetime | None:
    """When to try again after `tries` failures: the pause doubles up to 4 hours, give or take a quarter, so that the
    receivers of one outage are not all called at once. None: it is given up, after about a day."""
    if tries >= MOST_TRIES:
        return None
    pause = min(first_pause_seconds * 2 ** (tries - 1), _LONGEST_PAUSE_SECONDS)
    return now + timedelta(seconds=pause * jitter.uniform(0.75, 1.25))
