"""A process like the API and the worker in one: a request, the workflow that it leads to, its activity.

Started by `test_traces.py` with `HEADRACE_OTEL_ENDPOINT`; what it knows of the trace goes to standard output as JSON.
"""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import httpx
import structlog
from fastapi import FastAPI
from sqlmodel import SQLModel
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from api.boundary import Boundary
from domain.clock import utc_now
from observability import count_log_bytes, current_trace_context, setup, use_trace_context
from observability.activities import ActivityLogContext
from observability.http import http_telemetry, instrument_api
from settings import Settings
from store.db import Database
from store.temporal import connect
from store.vault import Vault
from tests.observability.traced_workflow import TracedWorkflow, observed_activity

JOB_ID = "job_0123456789abcdef"
SECRET = "hr_" + "s" * 43


class Services:
    def __init__(self, settings: Settings) -> None:
        self.settings, self.clock = settings, utc_now
        self.db = Database(settings.sqlalchemy_url)
        SQLModel.metadata.create_all(self.db.engine)


async def main() -> None:
    settings = Settings()
    telemetry = setup(settings, "headrace-test")
    app = FastAPI(telemetry=http_telemetry(telemetry))
    stored: dict[str, str] = {}

    @app.post("/api/v1/compute/jobs/{job_id}/start")
    async def start(job_id: str) -> None:
        structlog.get_logger().info("request_at_work", key=SECRET)
        stored.update(current_trace_context())

    app.add_middleware(Boundary)
    instrument_api(app, Services(settings), telemetry)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post(f"/api/v1/compute/jobs/{JOB_ID}/start", headers={"X-Request-Id": "req_1"})
    count_log_bytes("stdout", 7)
    logging.getLogger("some.library").warning("library_at_work with %s", SECRET)

    server = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")), dev_server_log_level="error"
    )
    async with server:
        settings.temporal_address = server.client.service_client.config.target_host
        client = await connect(settings, Vault.parse(Vault.generate()))
        worker = Worker(
            client,
            task_queue="traced",
            workflows=[TracedWorkflow],
            activities=[observed_activity],
            interceptors=[ActivityLogContext()],
        )
        async with worker:
            with use_trace_context(stored):
                await client.execute_workflow(TracedWorkflow.run, id=JOB_ID, task_queue="traced")
    telemetry.shutdown()
    sys.stdout.write(json.dumps(stored))


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    os._exit(0)
