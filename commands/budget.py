"""`headrace budget`: what an organization, a project or a user may spend."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from commands.client import ApiClient, find_credentials, path_part
from commands.exits import CommandError, ExitCode
from commands.options import AsJson, DataDir, OfOrganization
from commands.org import org_id
from commands.render import amount, moment, print_json, print_record, print_table, say

app = typer.Typer(no_args_is_help=True, help="Budgets: set, list, get, delete.")

BudgetId = Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's id, bud_...", show_default=False)]


@app.command("set")
def set_budget(
    usd: Annotated[str, typer.Argument(metavar="USD", help="The amount; 0 lets nothing run.", show_default=False)],
    project: Annotated[
        str | None, typer.Option("--project", help="Of this project's jobs only.", show_default=False)
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Of jobs made with keys of this owner only.", show_default=False)
    ] = None,
    total: Annotated[
        bool, typer.Option("--total", help="Once and for all, from now on; by default for each calendar month.")
    ] = False,
    alert: Annotated[
        list[int] | None,
        typer.Option("--alert", min=1, max=100, help="A percentage that is told. Repeatable.", show_default=False),
    ] = None,
    org: OfOrganization = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create the budget of a scope and period, or change its amount. Less than is spent stops its jobs at once."""
    body: dict[str, Any] = {"amount_usd": _number(usd)}
    if alert:
        body["alert_percents"] = alert
    scope = {"project": project, "user": user, "period": "total" if total else "monthly"}
    with ApiClient(find_credentials(data_dir)) as client:
        query = _of(client, org)
        known = next((b for b in client.pages("/budgets", {**query, "limit": 200}) if _is_of(b, scope)), None)
        if known is None:
            made = client.post("/budgets" + _suffix(query), {**scope, **body})
        else:
            # Whoever changed it meanwhile is not overruled unseen.
            same = {"If-Match": str(known["version"])}
            made = client.put(f"/budgets/{known['id']}" + _suffix(query), body, same)
    if as_json:
        print_json(made)
        return
    say(f"{'made' if known is None else 'changed'} {made['id']}")
    _show(made)


@app.command("list")
def list_budgets(org: OfOrganization = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the budgets and how they stand."""
    with ApiClient(find_credentials(data_dir)) as client:
        found = list(client.pages("/budgets", {**_of(client, org), "limit": 200}))
    if as_json:
        print_json(found)
        return
    print_table(
        ("BUDGET", "OF", "PERIOD", "AMOUNT", "SPENT", "HELD", "LEFT", "%", "USED UP AT"),
        (
            (
                budget["id"],
                _scope(budget),
                budget["period"],
                amount(budget["amount_usd"]) or "",
                amount(budget["spent_usd"]) or "",
                amount(budget["reserved_usd"]) or "",
                amount(budget["remaining_usd"]) or "",
                f"{budget['percent']}",
                moment(budget["exhausted_at"]) or "-",
            )
            for budget in found
        ),
    )


@app.command("get")
def get_budget(
    budget_id: BudgetId, org: OfOrganization = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show a budget: window, spend, what live jobs hold, burn rate, alerts."""
    with ApiClient(find_credentials(data_dir)) as client:
        budget = client.get(f"/budgets/{path_part(budget_id, 'budget')}", _of(client, org))
    if as_json:
        print_json(budget)
    else:
        _show(budget)


@app.command("delete")
def delete_budget(budget_id: BudgetId, org: OfOrganization = None, data_dir: DataDir = None) -> None:
    """Delete a budget: it bounds nothing any more."""
    with ApiClient(find_credentials(data_dir)) as client:
        client.delete(f"/budgets/{path_part(budget_id, 'budget')}" + _suffix(_of(client, org)))
    say(f"deleted {budget_id}")


def _number(text: str) -> int | float:
    """The JSON number with these very digits.

    Raises:
        CommandError: it is no amount, or has more digits than a number that every client reads alike.
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:
        exact = Decimal("NaN")
    if not exact.is_finite() or exact < 0:
        raise CommandError(f"{text!r} is not an amount in USD", code=ExitCode.USAGE)
    if exact == exact.to_integral_value():
        return int(exact)
    if Decimal(repr(float(exact))) != exact:
        raise CommandError(f"{text} has too many digits: give it to 15 at most", code=ExitCode.USAGE)
    return float(exact)


def _of(client: ApiClient, organization: str | None) -> dict[str, str]:
    return {} if organization is None else {"org_id": org_id(client, organization)}


def _suffix(query: Mapping[str, str]) -> str:
    return "".join(f"?{name}={value}" for name, value in query.items())


def _is_of(budget: Mapping[str, Any], scope: Mapping[str, Any]) -> bool:
    return all(budget[name] == value for name, value in scope.items())


def _scope(budget: Mapping[str, Any]) -> str:
    parts = [f"{name} {budget[name]}" for name in ("project", "user") if budget[name]]
    return ", ".join(parts) or "organization"


def _show(budget: Mapping[str, Any]) -> None:
    window = budget["window"]
    print_record(
        [
            ("budget", budget["id"]),
            ("of", _scope(budget)),
            ("period", budget["period"]),
            ("from", moment(window["from"])),
            ("to", moment(window["to"])),
            ("amount", amount(budget["amount_usd"])),
            ("spent", f"{amount(budget['spent_usd'])} ({budget['percent']} %)"),
            ("held by jobs", amount(budget["reserved_usd"])),
            ("left", amount(budget["remaining_usd"])),
            ("burn rate", f"{amount(budget['burn_usd_hr'])} per hour" if budget["burn_usd_hr"] else None),
            ("used up at", moment(budget["exhausted_at"])),
            ("alerts at", ", ".join(f"{percent} %" for percent in budget["alert_percents"]) or None),
            *(
                (f"{alert['kind']} {alert['percent']} %", f"{moment(alert['at'])}, {amount(alert['spent_usd'])} spent")
                for alert in budget["alerts"]
            ),
        ]
    )
