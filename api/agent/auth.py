"""Who an agent is: its bootstrap token names an attempt, its session token is found by its hash on the row."""

from fastapi import Request
from sqlalchemy import bindparam, select
from sqlmodel import Session, col

from api.services import Services
from domain.errors import NotAuthenticated
from domain.ids import AttemptId
from store import attempts
from store.tables import Instance
from store.vault import hash_token

_BY_SESSION = select(Instance).where(col(Instance.session_hash) == bindparam("wanted"))


def bearer(request: Request) -> str:
    """The token of the request.

    Raises:
        NotAuthenticated: there is none.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise NotAuthenticated("an agent's token is wanted: Authorization: Bearer")
    return token


def bootstrap_attempt(services: Services, request: Request) -> AttemptId:
    """The attempt that the bootstrap token belongs to; that the attempt exists is another question.

    Raises:
        NotAuthenticated: no master key of ours made this token.
    """
    attempt_id = services.vault.attempt_of(bearer(request))
    if attempt_id is None:
        raise NotAuthenticated("unknown bootstrap token")
    return attempt_id


def attempt_row(session: Session, attempt_id: AttemptId, *, lock: bool = True) -> Instance:
    """The attempt's row, locked, and its job's before it; `lock=False` is for reads.

    Raises:
        NotAuthenticated: there is no such attempt, or its absence was confirmed.
    """
    try:
        return _valid(attempts.locked(session, attempt_id) if lock else attempts.peek(session, attempt_id))
    except LookupError:
        raise NotAuthenticated(f"there is no attempt {attempt_id}") from None


def session_row(session: Session, token: str) -> Instance:
    """The row of the instance that a session token belongs to. Looked up each time: a revocation counts at once.

    Raises:
        NotAuthenticated: unknown (`unauthenticated`), or the instance was confirmed absent (`revoked`).
    """
    return _valid(session.execute(_BY_SESSION, {"wanted": hash_token(token)}).scalar_one_or_none())


def _valid(instance: Instance | None) -> Instance:
    if instance is None:
        raise NotAuthenticated("unknown token")
    if instance.confirmed_absent_at is not None:
        raise NotAuthenticated(f"{instance.id} was confirmed absent", code="revoked")
    return instance
