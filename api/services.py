"""What the API's routes work with, wired once at the start of the process."""

from dataclasses import dataclass, field

from temporalio.client import Client

from api.presence import Presence
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
    write_problem: str | None = None
    """Why this process's latest beat could not be written, as on a full disk; None when it was."""
