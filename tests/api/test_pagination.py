"""Cursors: they go round, and nothing but the traversal that issued one takes it."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pagination import Traversal
from domain.errors import InvalidCursor
from store.vault import Vault

VAULT = Vault.parse(Vault.generate())

positions = st.one_of(
    st.integers(0, 2**53), st.text(max_size=30), st.lists(st.integers(0, 2**53) | st.text(max_size=30), max_size=3)
)
parts = st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=5)


@given(parts, positions)
def test_a_cursor_gives_back_its_position(where: list[Any], position: Any) -> None:
    traversal = Traversal(VAULT, *where)
    assert traversal.position(traversal.cursor(position)) == position


@given(parts, parts, positions)
def test_a_cursor_of_another_traversal_is_refused(one: list[Any], other: list[Any], position: Any) -> None:
    if one == other:
        return
    with pytest.raises(InvalidCursor):
        Traversal(VAULT, *other).position(Traversal(VAULT, *one).cursor(position))


@given(positions, st.data())
def test_a_changed_cursor_is_refused(position: Any, data: st.DataObject) -> None:
    traversal = Traversal(VAULT, "jobs")
    cursor = traversal.cursor(position)
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidCursor):
        traversal.position(base64.urlsafe_b64encode(bytes(raw)).decode())


@given(st.text(max_size=1500))
def test_text_that_no_one_issued_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        Traversal(VAULT, "jobs").position(text)


def test_a_cursor_of_another_installation_is_refused() -> None:
    cursor = Traversal(Vault.parse(Vault.generate()), "jobs").cursor(1)
    with pytest.raises(InvalidCursor):
        Traversal(VAULT, "jobs").position(cursor)


def test_a_cursor_survives_the_rotation_of_the_master_key() -> None:
    old, new = Vault.generate(), Vault.generate()
    cursor = Traversal(Vault.parse(old), "jobs").cursor(7)
    assert Traversal(Vault.parse(f"{new},{old}"), "jobs").position(cursor) == 7
