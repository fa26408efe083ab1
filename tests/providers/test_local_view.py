"""What an engine's own words about a container mean."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.base import ProviderState, PublishedPort
from providers.local.container_view import parse_time, seen
from providers.local.engine import Seen

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
BOOTED = NOW - timedelta(hours=5)
NEVER = "0001-01-01T00:00:00Z"


def read(status: str, *, age_seconds: float = 1, started: bool = True, knows_oom: bool = True, **state: Any) -> Seen:
    created = NOW - timedelta(seconds=age_seconds)
    details = {
        "Name": "/hr-inst-a",
        "Created": created.isoformat().replace("+00:00", "123Z") if created.microsecond else f"{created:%FT%T}.5Z",
        "State": {"Status": status, "StartedAt": created.isoformat() if started else NEVER, **state},
        "Config": {"Labels": {"headrace.attempt": "inst-aaaaaaaaaaaaaaaaaaaa"}},
    }
    return seen(details, now=NOW, booted_at=BOOTED, knows_oom=knows_oom)


class TestStates:
    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ("running", ProviderState.RUNNING),
            ("paused", ProviderState.RUNNING),
            ("stopping", ProviderState.STOPPING),
            ("removing", ProviderState.STOPPING),
            ("exited", ProviderState.EXITED),
            ("dead", ProviderState.EXITED),
        ],
    )
    def test_follow_the_engine(self, status: str, state: ProviderState) -> None:
        assert read(status).state is state

    @pytest.mark.parametrize("status", ["", "recalibrating", "Running!"])
    def test_that_nobody_knows_are_still_held(self, status: str) -> None:
        assert read(status).state is ProviderState.RUNNING

    def test_an_exit_code_counts_only_once_it_has_exited(self) -> None:
        assert read("exited", ExitCode=7).exit_code == 7
        assert read("exited", ExitCode=0).exit_code == 0
        assert read("running", ExitCode=0).exit_code is None

    @pytest.mark.parametrize(("hours_ago", "state"), [(6, ProviderState.FAILED), (4, ProviderState.EXITED)])
    def test_an_end_after_the_machines_start_is_none_of_what_ran_before_it(
        self, hours_ago: int, state: ProviderState
    ) -> None:
        view = read("exited", age_seconds=hours_ago * 3600, ExitCode=255, FinishedAt=NOW.isoformat())
        assert view.state is state
        assert view.exit_code == (None if state is ProviderState.FAILED else 255)


class TestACreatedContainer:
    def test_is_starting_at_first(self) -> None:
        assert read("created", started=False).state is ProviderState.STARTING

    def test_failed_when_it_does_not_start(self) -> None:
        view = read("created", started=False, age_seconds=61)
        assert (view.state, view.exit_code) == (ProviderState.FAILED, None)
        assert "never started" in view.message

    def test_failed_when_it_ran_before_whatever_exit_code_it_shows(self) -> None:
        view = read("created", started=True, age_seconds=3600, ExitCode=0)
        assert (view.state, view.exit_code) == (ProviderState.FAILED, None)
        assert "restarted" in view.message

    def test_failed_when_it_is_older_than_the_machines_start(self) -> None:
        view = read("configured", started=False, age_seconds=6 * 3600)
        assert view.state is ProviderState.FAILED
        assert "restarted" in view.message

    def test_failed_when_the_engine_says_why(self) -> None:
        view = read("created", started=False, ExitCode=127, Error="exec: bash: not found")
        assert (view.state, view.message) == (ProviderState.FAILED, "exec: bash: not found")


class TestMemory:
    def test_is_judged_where_the_engine_can_tell(self) -> None:
        assert read("exited", OOMKilled=True).oom_killed is True
        assert read("exited", OOMKilled=False).oom_killed is False

    def test_is_not_judged_where_it_cannot(self) -> None:
        assert read("exited", OOMKilled=False, knows_oom=False).oom_killed is None


class TestEndpoints:
    DETAILS: dict[str, Any] = {
        "Config": {
            "Labels": {"headrace.ports": '[{"name": "web", "container_port": 8000, "protocol": "http"}]'},
        },
    }

    def test_have_the_port_that_the_engine_chose(self) -> None:
        ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "43895"}], "22/tcp": None}
        details = {**self.DETAILS, "NetworkSettings": {"Ports": ports}}
        view = seen(details, now=NOW, booted_at=BOOTED, knows_oom=True)
        assert view.endpoints == (PublishedPort("web", "http", "127.0.0.1", 43895),)

    def test_are_the_ports_themselves_on_the_host_network(self) -> None:
        details = {**self.DETAILS, "HostConfig": {"NetworkMode": "host"}}
        view = seen(details, now=NOW, booted_at=BOOTED, knows_oom=True)
        assert [(e.name, e.port) for e in view.endpoints] == [("web", 8000)]

    def test_are_none_before_they_are_published(self) -> None:
        assert seen(self.DETAILS, now=NOW, booted_at=BOOTED, knows_oom=True).endpoints == ()


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-11-30T14:22:24.257503637Z", datetime(2026, 11, 30, 14, 22, 24, 257503, tzinfo=UTC)),
            ("2026-11-30T14:22:24Z", datetime(2026, 11, 30, 14, 22, 24, tzinfo=UTC)),
            ("2026-11-30T16:22:24.5+02:00", datetime(2026, 11, 30, 14, 22, 24, 500000, tzinfo=UTC)),
            (NEVER, None),
            ("", None),
            (None, None),
            ("yesterday", None),
        ],
    )
    def test_of_engines_have_nanoseconds(self, text: str | None, expected: datetime | None) -> None:
        assert parse_time(text) == expected

    @given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)), st.integers(0, 999))
    def test_survive_to_the_microsecond(self, moment: datetime, nanoseconds: int) -> None:
        text = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}{nanoseconds:03d}Z"
        assert parse_time(text) == moment
