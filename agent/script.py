"""The agent's script: the text that every provider makes a workload's command of."""

from functools import cache
from pathlib import Path

PROTOCOL = 1
"""The version that the script speaks; the API speaks it for as long as agents of it may live."""


@cache
def agent_script() -> str:
    """The text of the agent: the same bytes for the life of the process."""
    return (Path(__file__).parent / "agent.sh").read_text(encoding="utf-8")
