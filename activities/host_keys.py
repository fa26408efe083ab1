"""The pinned host keys as a provider uses them, which knows no database."""

from sqlalchemy.exc import SQLAlchemyError

from domain.clock import Clock
from domain.errors import Ambiguous
from store import host_keys
from store.db import Database


class StoredHostKeys:
    """`providers.base.HostKeys` of one connection, shared by all workers through the database."""

    def __init__(self, db: Database, connection_id: str, clock: Clock) -> None:
        self._db = db
        self._connection_id = connection_id
        self._clock = clock

    async def pinned(self, address: str) -> str | None:
        """Raises Ambiguous while the database does not answer: no host is connected to unchecked."""
        try:
            return await self._db.read(lambda session: host_keys.pinned(session, self._connection_id, address))
        except SQLAlchemyError as error:
            raise _unknown(address, error) from error

    async def pin(self, address: str, key: str) -> str:
        """Raises as `pinned` does."""
        id_, now = self._connection_id, self._clock()
        try:
            return await self._db.write(lambda session: host_keys.pin(session, id_, address, key, now))
        except SQLAlchemyError as error:
            raise _unknown(address, error) from error


def _unknown(address: str, error: SQLAlchemyError) -> Ambiguous:
    return Ambiguous(f"the host key of {address} could not be looked up ({type(error).__name__})")
