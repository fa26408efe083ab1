"""The agent's script, in parts: bash functions that become one text, in this order.

tools.sh     what the agent is, and what all of it uses
start.sh     from the environment to the launch spec
ssh.sh       the user's way in
run.sh       the workload, and how it ended
output.sh    what it prints, kept in pieces
orders.sh    what the control plane wants
shipping.sh  what the control plane is told, until it has heard it
main.sh      the one process that owns all state
"""

from pathlib import Path

_PARTS = ("tools", "start", "ssh", "run", "output", "orders", "shipping", "main")


def text() -> str:
    """The whole script."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{part}.sh").read_text(encoding="utf-8") for part in _PARTS)
