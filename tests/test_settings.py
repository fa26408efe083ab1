"""What settings are refused before anything starts."""

import pytest
from pydantic import ValidationError

from settings import Settings


def test_networks_that_the_packet_rules_of_jobs_do_not_take_are_refused() -> None:
    assert Settings(workload_networks="10.0.0.0/8, 192.168.7.0/24").workload_networks
    for text in ("fd00::/8", "10.0.0.0/8,::/0", "10.0.0.1/8", "nowhere"):
        with pytest.raises(ValidationError, match="workload_networks"):
            Settings(workload_networks=text)
