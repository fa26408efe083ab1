"""The agents' texts that this control plane has ever sent a machine for, by their digest: one that was rented before an
upgrade boots with the text of before it, whichever version of the API answers.
"""

from datetime import datetime

from sqlmodel import Session

from store.db import insert_once
from store.tables import AgentScript


def keep(session: Session, sha256: str, text: str, now: datetime) -> None:
    """Before any machine is told to fetch it."""
    insert_once(session, AgentScript, ("sha256",), sha256=sha256, text=text, kept_at=now)


def find(session: Session, sha256: str) -> str | None:
    """The text; None where no machine was ever sent for it."""
    row = session.get(AgentScript, sha256)
    return None if row is None else row.text
