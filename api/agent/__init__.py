"""The agents' side of the API, `/agent/v1`: launch, output, exit, orders. The other side is `agent/workload/`."""

from api.agent.app import create_agent_app
from api.agent.routes import router

__all__ = ["create_agent_app", "router"]
