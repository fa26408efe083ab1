"""`headrace webhook`: who is told of jobs' ends and budgets' alerts."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.options import AsJson, DataDir
from commands.render import hint, moment, print_json, print_record, print_table, put, say

app = typer.Typer(no_args_is_help=True, help="Webhooks: create, list, set, test, deliveries, resend, delete.")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id, wh_...", show_default=False)]
Event = Annotated[
    list[str] | None,
    typer.Option("--event", help="A type that is told; by default all. Repeatable.", show_default=False),
]


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://...", show_default=False)],
    event: Event = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print its signing secret to stdout, alone. It is never shown again."""
    with ApiClient(find_credentials(data_dir)) as client:
        made = client.post("/webhooks", {"url": url, "events": event or []})
    if as_json:
        print_json(made)
        return
    put(made["secret"])
    say(f"webhook {made['id']} to {made['url']}")
    hint(f"headrace webhook test {made['id']} sends it something to verify")


@app.command("list")
def list_webhooks(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the webhooks, without their secrets."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = client.get("/webhooks")["data"]
    if as_json:
        print_json(found)
        return
    print_table(
        ("WEBHOOK", "ENABLED", "EVENTS", "URL"),
        (
            (hook["id"], "yes" if hook["enabled"] else "no", ", ".join(hook["events"]) or "all", hook["url"])
            for hook in found
        ),
    )


@app.command("set")
def change(
    webhook_id: WebhookId,
    url: Annotated[str | None, typer.Option("--url", help="Another address.", show_default=False)] = None,
    event: Event = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="What waits is sent once it is enabled.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change what is given, and nothing else."""
    given = {"url": url, "events": event or None, "enabled": enabled}
    with ApiClient(find_credentials(data_dir)) as client:
        hook = client.put(_path(webhook_id), {name: value for name, value in given.items() if value is not None})
    if as_json:
        print_json(hook)
        return
    print_record(
        [
            ("webhook", hook["id"]),
            ("url", hook["url"]),
            ("events", ", ".join(hook["events"]) or "all"),
            ("enabled", "yes" if hook["enabled"] else "no"),
        ]
    )


@app.command("test")
def send_test(webhook_id: WebhookId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send it a `webhook.test`, whatever it filters."""
    with ApiClient(find_credentials(data_dir)) as client:
        _show_delivery(client.post(f"{_path(webhook_id)}/test"), as_json=as_json)


@app.command("deliveries")
def deliveries(
    webhook_id: WebhookId,
    state: Annotated[
        str | None, typer.Option("--state", help="pending, delivered or dead.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what was sent to it, or is to be; the newest first."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages(f"{_path(webhook_id)}/deliveries", {"state": state}, limit=limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ("DELIVERY", "TYPE", "STATE", "TRIES", "CREATED", "NEXT TRY", "LAST ANSWER"),
        (
            (
                row["id"],
                row["type"],
                row["state"],
                str(row["tries"]),
                moment(row["created_at"]) or "-",
                moment(row["next_try_at"]) or "-",
                row["last_error"] or str(row["last_status"] or "-"),
            )
            for row in found
        ),
    )


@app.command("resend")
def resend(
    delivery_id: Annotated[
        str, typer.Argument(metavar="DELIVERY", help="The delivery's id, whd_...", show_default=False)
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send a delivery again, with all tries before it: a dead one, or one that the receiver lost."""
    with ApiClient(find_credentials(data_dir)) as client:
        path = f"/webhooks/deliveries/{path_part(delivery_id, 'delivery')}/resend"
        _show_delivery(client.post(path), as_json=as_json)


@app.command("delete")
def delete(webhook_id: WebhookId, data_dir: DataDir = None) -> None:
    """Delete a webhook, and all that was to be sent to it."""
    with ApiClient(find_credentials(data_dir)) as client:
        client.delete(_path(webhook_id))
    say(f"deleted {webhook_id}")


def _path(webhook_id: str) -> str:
    return f"/webhooks/{path_part(webhook_id, 'webhook')}"


def _show_delivery(row: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        print_record([("delivery", row["id"]), ("type", row["type"]), ("state", row["state"])])
