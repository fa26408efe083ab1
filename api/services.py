"""What the API's routes work with, wired once at the start of the process."""

import time
from dataclasses import dataclass, field

from temporalio.client import Client

from api.key_use import KeyUse
from api.presence import Presence
from api.rate_limits import RateLimits
from domain.clock import Clock
from settings import Settings
from store.db import Database
from store.logs.output_mask import OutputMasks
from store.logs.store import LogStore
from store.vault import Vault


@dataclass
class Services:
    """Reached by routes as `request.app.state.services`. `temporal` is None until the first connection succeeded."""

    settings: Settings
    db: Database
    vault: Vault
    logs: LogStore
    clock: Clock
    temporal: Client | None = None
    presence: Presence = field(default_factory=Presence)
    """The agents that this process hears."""
    masks: OutputMasks = field(default_factory=OutputMasks)
    """What is taken out of the output of workloads that know secrets."""
    key_use: KeyUse = field(default_factory=KeyUse)
    """The uses of API keys that are not yet written down."""
    rate_limits: RateLimits = field(init=False)
    write_problem: str | None = None
    """Why this process's latest beat could not be written, as on a full disk; None when it was."""

    def __post_init__(self) -> None:
        self.rate_limits = RateLimits(
            per_second=self.settings.rate_limit_per_second,
            burst=self.settings.rate_limit_burst,
            failures_per_second=self.settings.auth_failures_per_second,
            failures_burst=self.settings.auth_failures_burst,
            monotonic=time.monotonic,
        )
