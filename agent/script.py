"""The agent's script: the text that every provider makes a workload's command of."""

from functools import cache

from agent import workload

PROTOCOL = 1
"""The version that the script speaks; the API speaks it for as long as agents of it may live."""


@cache
def agent_script() -> str:
    """The text of the agent: the same bytes for the life of the process."""
    return workload.text()
