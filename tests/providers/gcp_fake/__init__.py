"""Compute Engine and its price list for tests, on 127.0.0.1: stateful, strict about what it is asked, and spoilable.

cloud.py    machines, disks and operations, and what they cost
stock.py    what it has and its prices
server.py   HTTP: tokens, faults, and ways to lose an answer
"""

from tests.providers.gcp_fake.cloud import GcpCloud
from tests.providers.gcp_fake.server import Answer, Call, Fault, GcpServer, google_error, serve

__all__ = ["Answer", "Call", "Fault", "GcpCloud", "GcpServer", "google_error", "serve"]
