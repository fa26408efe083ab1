"""Identifiers have the forms that others rely on, and do not repeat."""

import re

from domain.ids import ATTEMPT_PATTERN, new_attempt_id, new_id, new_job_id, new_owner_id, new_token


def test_forms() -> None:
    assert re.fullmatch(r"job_[0-9A-Za-z]{16}", new_job_id())
    assert re.fullmatch(r"evt_[0-9A-Za-z]{16}", new_id("evt"))
    assert re.fullmatch(r"[a-z2-7]{12}", new_owner_id())
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", new_token())


def test_an_attempt_id_can_name_a_container_a_machine_and_a_label() -> None:
    attempt = new_attempt_id()
    assert ATTEMPT_PATTERN.fullmatch(attempt)
    assert len(attempt) <= 63
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", attempt)


def test_they_do_not_repeat() -> None:
    for mint in (new_job_id, new_attempt_id, new_owner_id, new_token):
        assert len({mint() for _ in range(1000)}) == 1000
