"""The helpers of the tests themselves."""

import socket
import subprocess

import pytest

from store.db import Database
from tests.support.clock import SettableClock
from tests.support.factory import Factory
from tests.support.guard import TransactionGuard


class TestTransactionGuard:
    def test_a_connection_inside_a_transaction_fails_the_test(
        self, sqlite_database: Database, transaction_guard: TransactionGuard
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sqlite_database.run_read(lambda _: socket.create_connection(server.getsockname()).close())
        with pytest.raises(AssertionError, match=r"socket.connect inside a database transaction(.|\n)*test_support"):
            transaction_guard.check()

    async def test_a_process_inside_a_transaction_fails_the_test(
        self, sqlite_database: Database, transaction_guard: TransactionGuard
    ) -> None:
        await sqlite_database.write(lambda _: subprocess.run(["true"], check=True))
        with pytest.raises(AssertionError, match=r"subprocess\.Popen inside a database transaction"):
            transaction_guard.check()

    def test_the_same_outside_passes(self, database: Database, transaction_guard: TransactionGuard) -> None:
        database.run_read(lambda _: None)
        subprocess.run(["true"], check=True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        transaction_guard.check()


def test_the_factory_makes_rows_on_both_databases(database: Database, factory: Factory, clock: SettableClock) -> None:
    job = factory.job(created_at=clock())
    instance = factory.instance(job)
    clock.advance(minutes=30)
    assert factory.price(instance, "0.44").since == clock()
    assert (instance.org_id, instance.number) == (job.org_id, 1)
    assert factory.key().token.startswith("hr_")
