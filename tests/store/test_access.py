"""Keys: who a token is, and what creating organizations, projects and keys refuses."""

import pytest
from sqlalchemy import event

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.roles import Role
from store.access import authenticate, create_key, create_organization, create_project, revoke_key
from store.db import Database
from store.tables import ApiKey, Project
from tests.support.clock import SettableClock
from tests.support.factory import Factory


@pytest.mark.parametrize("role", list(Role))
def test_a_token_tells_its_organization_owner_and_role(
    database: Database, factory: Factory, role: Role, clock: SettableClock
) -> None:
    organization = factory.organization()
    key = factory.key(organization, role=role, owner="Ada")
    principal = database.run_read(lambda s: authenticate(s, key.token, clock()))
    assert principal is not None
    assert principal.key_id == key.key_id
    assert (principal.org_id, principal.owner, principal.role) == (organization.id, "Ada", role)
    assert principal.project_id is None


def test_a_key_of_a_project_names_it(database: Database, factory: Factory, clock: SettableClock) -> None:
    project = factory.project()
    key = factory.key(project=project)
    principal = database.run_read(lambda s: authenticate(s, key.token, clock()))
    assert principal is not None
    assert principal.project_id == project.id


def test_a_key_of_a_disabled_organization_is_known(database: Database, factory: Factory, clock: SettableClock) -> None:
    key = factory.key(factory.organization(enabled=False))
    assert database.run_read(lambda s: authenticate(s, key.token, clock())) is not None


@pytest.mark.parametrize("change", [str.upper, lambda t: t[:-1], lambda t: t + "x", lambda t: t[3:], lambda _: ""])
def test_a_changed_token_is_nobody(database: Database, factory: Factory, change: object, clock: SettableClock) -> None:
    token = factory.key().token
    assert callable(change)
    assert database.run_read(lambda s: authenticate(s, change(token), clock())) is None


def test_the_stored_hash_is_no_token(database: Database, factory: Factory, clock: SettableClock) -> None:
    key = factory.key()
    stored = database.run_read(lambda s: s.get_one(ApiKey, key.key_id))
    assert database.run_read(lambda s: authenticate(s, stored.key_hash, clock())) is None


def test_a_revoked_key_is_nobody(database: Database, factory: Factory, clock: SettableClock) -> None:
    kept, revoked = factory.key(), factory.key()
    assert database.run_write(lambda s: revoke_key(s, revoked.key_id, clock()))
    assert database.run_read(lambda s: authenticate(s, revoked.token, clock())) is None
    assert database.run_read(lambda s: authenticate(s, kept.token, clock())) is not None


def test_revoking_again_keeps_the_first_time(database: Database, factory: Factory, clock: SettableClock) -> None:
    key = factory.key()
    revoked_at = clock()
    database.run_write(lambda s: revoke_key(s, key.key_id, clock()))
    clock.advance(hours=1)
    assert not database.run_write(lambda s: revoke_key(s, key.key_id, clock()))
    assert database.run_read(lambda s: s.get_one(ApiKey, key.key_id)).revoked_at == revoked_at


def test_authentication_is_one_query(database: Database, factory: Factory, clock: SettableClock) -> None:
    token = factory.key().token
    seen: list[str] = []
    event.listen(
        database.engine, "before_cursor_execute", lambda _c, _k, statement, *_: seen.append(statement.split()[0])
    )
    database.run_read(lambda s: authenticate(s, token, clock()))
    assert [verb for verb in seen if verb != "BEGIN"] == ["SELECT"]


@pytest.mark.parametrize("name", ["", " ", "-a", "a b", "a/b", "ä", "a\n", "a\0", "x" * 64, "'; --"])
def test_a_hostile_name_is_refused(database: Database, clock: SettableClock, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        database.run_write(lambda s: create_organization(s, name, clock()))
    assert refused.value.field == "name"


def test_a_name_is_taken_once(database: Database, factory: Factory, clock: SettableClock) -> None:
    organization = factory.organization("acme")
    with pytest.raises(Conflict, match="acme"):
        factory.organization("acme")
    with pytest.raises(Conflict, match="default"):
        factory.project(organization, "default")
    other = factory.organization()
    assert database.run_write(lambda s: create_project(s, other.id, "acme", clock())).org_id == other.id


def test_an_organization_is_not_enabled_by_itself(database: Database, clock: SettableClock) -> None:
    assert not database.run_write(lambda s: create_organization(s, "acme", clock())).enabled


def test_a_key_for_anothers_project_is_refused(database: Database, factory: Factory, clock: SettableClock) -> None:
    mine, others = factory.organization(), factory.project(factory.organization())
    with pytest.raises(NotFound):
        database.run_write(lambda s: create_key(s, mine.id, "me", Role.MEMBER, clock(), project_id=others.id))
    with pytest.raises(NotFound):
        database.run_write(lambda s: create_key(s, "org_unknown", "me", Role.MEMBER, clock()))
    assert database.run_read(lambda s: s.get(Project, others.id)) is not None
