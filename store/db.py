"""The database: engines, transactions in threads, and what happens after a commit.

A transaction is a plain function of a session, run whole in a thread: it cannot await, so no provider or HTTP call can
stand inside it. `in_transaction()` lets the test suite prove that.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

from sqlalchemy import Engine, Executable, bindparam, create_engine, event, literal_column, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, SQLModel

T = TypeVar("T")

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside_transaction", default=False)
_TRIES = 5


def in_transaction() -> bool:
    """Whether the calling code runs inside a database transaction."""
    return _inside.get()


def publish(session: Session, topic: str) -> None:
    """Wakes the subscribers of `topic` in this process once the transaction of `session` has been committed."""
    session.info.setdefault("topics", set()).add(topic)


def insert_once(session: Session, table: type[SQLModel], unique: Sequence[str], **values: Any) -> bool:
    """Inserts a row unless one with the same `unique` columns is there; says whether it did.

    Waits for another transaction that is just inserting such a row, instead of failing after it.
    """
    statement = _insert_once(table, tuple(unique), tuple(values), is_sqlite(session))
    return session.connection().execute(statement, values).first() is not None


@cache
def _insert_once(table: type[SQLModel], unique: tuple[str, ...], names: tuple[str, ...], sqlite_: bool) -> Executable:
    """Kept, because building a statement and its cache key costs more than its execution."""
    insert = sqlite.insert if sqlite_ else postgresql.insert
    statement = insert(table).values({name: bindparam(name) for name in names})
    return statement.on_conflict_do_nothing(index_elements=unique).returning(literal_column("1"))


async def woken(wakeup: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or for so long. Unlike `wait_for` of Python 3.11, it loses no cancellation that comes
    just as the event is set: a loop around it ends when it is told to."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wakeup.wait()


def is_sqlite(session: Session) -> bool:
    """Whether a transaction that writes is the only one from its beginning: then no row needs a lock of its own."""
    return session.get_bind().dialect.name == "sqlite"


class Database:
    """One per process. `read` and `write` run a function of a session; `write` commits it, and repeats it when the
    database says that a concurrent transaction won."""

    def __init__(self, url: str, *, readers: int = 4, writers: int = 8) -> None:
        self.url = url
        self.sqlite = url.startswith("sqlite")
        self.engine = _sqlite_engine(url) if self.sqlite else _postgres_engine(url, readers + writers)
        # SQLite has one writer: a queue in front of it beats a fight over its lock.
        self._writers = ThreadPoolExecutor(1 if self.sqlite else writers, "db-write")
        self._readers = ThreadPoolExecutor(readers, "db-read")
        self._subscribers: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs `query` on a consistent snapshot; nothing that it changes is kept."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.run_read, query)

    async def write(self, change: Callable[[Session], T], *, durable: bool = False) -> T:
        """Runs `change` in one transaction. It must be repeatable: it may run more than once before it is kept.

        The change is carried through even when the caller is cancelled meanwhile. A `durable` one, and all before it,
        outlives a power loss; of others, SQLite may lose the last.
        """
        write = partial(self.run_write, change, durable=durable)
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writers, write))

    def run_read(self, query: Callable[[Session], T]) -> T:
        """`read`, in the calling thread."""
        with _marked(), Session(self.engine, expire_on_commit=False) as session:
            if self.sqlite:
                session.connection().exec_driver_sql("BEGIN")
            else:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            return query(session)

    def run_write(self, change: Callable[[Session], T], *, durable: bool = False) -> T:
        """`write`, in the calling thread."""
        for remaining in reversed(range(_TRIES)):
            try:
                return self._write_once(change, durable)
            except DBAPIError as error:
                if not remaining or not _lost_a_race(error):
                    raise
        raise AssertionError("unreachable")

    def _write_once(self, change: Callable[[Session], T], durable: bool) -> T:
        with _marked(), Session(self.engine, expire_on_commit=False) as session:
            if self.sqlite and durable:
                session.connection().exec_driver_sql("PRAGMA synchronous=FULL")
            if self.sqlite:
                session.connection().exec_driver_sql("BEGIN IMMEDIATE")
            result = change(session)
            session.commit()
            if self.sqlite and durable:
                session.connection().exec_driver_sql("PRAGMA synchronous=NORMAL")
            topics = session.info.get("topics", ())
        for topic in topics:
            self._wake(topic)
        return result

    def subscribe(self, topic: str) -> asyncio.Event:
        """An event of the running loop that is set after each commit which published `topic`."""
        wakeup = asyncio.Event()
        self._subscribers.setdefault(topic, []).append((asyncio.get_running_loop(), wakeup))
        return wakeup

    def unsubscribe(self, topic: str, wakeup: asyncio.Event) -> None:
        """Forgets what `subscribe` returned."""
        remaining = [entry for entry in self._subscribers.get(topic, ()) if entry[1] is not wakeup]
        if remaining:
            self._subscribers[topic] = remaining
        else:
            self._subscribers.pop(topic, None)

    def _wake(self, topic: str) -> None:
        for loop, wakeup in self._subscribers.get(topic, ()):
            with suppress(RuntimeError):  # its loop was closed meanwhile: nobody waits there any more
                loop.call_soon_threadsafe(wakeup.set)

    def check(self) -> None:
        """Raises when the database does not answer."""
        self.run_read(lambda session: session.connection().execute(text("SELECT 1")).one())

    def close(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self.engine.dispose()


@contextmanager
def _marked() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _lost_a_race(error: DBAPIError) -> bool:
    """A busy SQLite, or PostgreSQL's serialization failures and deadlocks (SQLSTATE 40001, 40P01)."""
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate in {"40001", "40P01"} or "database is locked" in str(error.orig)


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, connect_args={"check_same_thread": False, "timeout": 30}, pool_size=12)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # Transactions are begun by us: the driver's implicit BEGIN would be deferred, and could fail on upgrade.
        connection.isolation_level = None
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            "cache_size=-4000",
            "busy_timeout=30000",
        ):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _postgres_engine(url: str, pool_size: int) -> Engine:
    url = url.replace("postgresql://", "postgresql+psycopg://", 1).replace("postgres://", "postgresql+psycopg://", 1)
    return create_engine(url, pool_size=pool_size, max_overflow=4, pool_pre_ping=True)
