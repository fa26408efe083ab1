"""The Temporal UI in a real browser: what an operator reads before and after signing in to the codec."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Error, Locator, Page, async_playwright, expect
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from domain.roles import Role
from store.temporal import data_converter
from store.vault import Vault
from tests.security.conftest import Services
from tests.security.summarised_workflow import SummarisedWorkflow
from tests.support.factory import Factory

pytestmark = pytest.mark.browser

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TEMPORAL = str(Path(sys.executable).with_name("temporal"))

ARGUMENT, SUMMARY, DETAILS, FAILURE = (
    "the argument",
    "summary of the workflow",
    "details of the argument",
    "message of the failure",
)


# A loaded machine takes its time to render.
expect.set_options(timeout=30_000)
# Chromium gives up its requests whenever a network interface comes or goes, as with each container that other tests
# start; the UI then stays empty, or shows an error page. So a page that does not show what it should is opened again.
TRIES = 6


@dataclass
class Stack:
    client: Client
    ui_url: str
    api_url: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
async def stack(codec_app: FastAPI, services: Services, vault: Vault) -> AsyncIterator[Stack]:
    """The dev server with its UI, an API that serves the codec, and a worker, on ports of their own."""
    ui_port, api_port = free_port(), free_port()
    services.settings.temporal_ui_url = f"http://127.0.0.1:{ui_port}"
    services.clock = lambda: datetime.now(UTC)
    api = uvicorn.Server(uvicorn.Config(codec_app, port=api_port, log_level="error"))
    serving = asyncio.create_task(api.serve())
    async with (
        await WorkflowEnvironment.start_local(
            data_converter=data_converter(vault),
            dev_server_existing_path=TEMPORAL,
            dev_server_log_level="error",
            ui=True,
            ui_port=ui_port,
            dev_server_extra_args=[
                "--ui-codec-endpoint",
                f"http://127.0.0.1:{api_port}/codec",
                "--ui-disable-news-fetch",
            ],
        ) as environment,
        Worker(environment.client, task_queue="codec", workflows=[SummarisedWorkflow]),
    ):
        yield Stack(environment.client, services.settings.temporal_ui_url, f"http://127.0.0.1:{api_port}")
    api.should_exit = True
    await serving


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield await browser.new_page(viewport={"width": 1400, "height": 1200})
        await browser.close()


async def open_until_visible(page: Page, address: str, *wanted: Locator) -> None:
    for left in reversed(range(TRIES)):
        try:
            await page.goto(address)
            for locator in wanted:
                await expect(locator).to_be_visible()
        except (Error, AssertionError):
            if not left:
                raise
        else:
            return


async def status_of_decoding(page: Page, address: str) -> int:
    """What the codec answers to the page at `address`."""
    for left in reversed(range(TRIES)):
        try:
            async with page.expect_response(lambda answer: "/codec/decode" in answer.url) as decoded:
                await page.goto(address)
            return (await decoded.value).status
        except Error:
            if not left:
                raise
    raise AssertionError(address)


async def use_codec_with_credentials(page: Page, endpoint: str) -> None:
    """By hand, as docs/observability.md tells an operator."""
    await page.get_by_test_id("data-encoder-status-error").first.click()
    await page.get_by_label("Use my browser setting").check()
    await page.get_by_test_id("data-encoder-endpoint-input").fill(endpoint)
    await page.get_by_test_id("data-encoder-include-credentials").click()
    await page.locator("#data-encoder-settings").get_by_test_id("confirm-modal-button").click()


async def sign_in(page: Page, api_url: str, token: str) -> None:
    await open_until_visible(page, f"{api_url}/codec/login", page.get_by_label("API key"))
    await page.get_by_label("API key").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading")).to_have_text("Headrace: signed in")


async def test_arguments_summary_details_and_failure_are_readable_after_signing_in_and_not_before(
    stack: Stack, page: Page, keys: Factory, tmp_path: Path
) -> None:
    handle = await stack.client.start_workflow(
        SummarisedWorkflow.run, {"note": ARGUMENT}, id="shown", task_queue="codec", static_summary=SUMMARY
    )
    workflow_page = f"{stack.ui_url}/namespaces/default/workflows/shown/{handle.first_execution_run_id}"
    metadata_page = f"{workflow_page}/user-metadata"

    await open_until_visible(page, workflow_page, page.get_by_test_id("data-encoder-status-error").first)
    await use_codec_with_credentials(page, f"{stack.api_url}/codec")
    for address in (workflow_page, metadata_page):
        assert await status_of_decoding(page, address) == 401
        await expect(page.get_by_test_id("data-encoder-status-error").first).to_be_visible()
        # Summary and details are shown in frames whose address carries the text.
        shown = unquote(await page.content())
        assert not [secret for secret in (ARGUMENT, SUMMARY, DETAILS) if secret in shown]

    await sign_in(page, stack.api_url, keys.key(role=Role.CLUSTER_ADMIN).token)

    await open_until_visible(page, workflow_page, page.get_by_text(ARGUMENT).first)
    fields = (("summary", SUMMARY), ("current-details", DETAILS))
    texts = [page.frame_locator(f"#user-metadata-{field}").get_by_text(text) for field, text in fields]
    await open_until_visible(page, metadata_page, *texts)

    await handle.signal(SummarisedWorkflow.release)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    shown_failure = (page.get_by_text(FAILURE).first, page.get_by_text("CapacityExhausted").first)
    await open_until_visible(page, workflow_page, *shown_failure)
    await page.screenshot(path=tmp_path / "failure.png")
