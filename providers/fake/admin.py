"""The admin API: how a test sets the stage and reads what the cloud saw. See `control.py` for its client."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.fake.cloud import Cloud, CloudOffer, Instance, Resource
from providers.fake.faults import READS, Fault, Operation
from providers.fake.script import ScriptRule


def admin_routes(cloud: Cloud) -> list[Route]:
    admin = _Admin(cloud)
    return [
        Route("/admin/settings", admin.settings, methods=["PATCH"]),
        Route("/admin/clock", admin.clock, methods=["POST"]),
        Route("/admin/offers", admin.offers, methods=["PUT"]),
        Route("/admin/faults", admin.add_fault, methods=["POST"]),
        Route("/admin/faults", admin.clear_faults, methods=["DELETE"]),
        Route("/admin/scripts", admin.scripts, methods=["POST"]),
        Route("/admin/journal", admin.journal),
        Route("/admin/resources", admin.resources),
        Route("/admin/resources/{key}", admin.change, methods=["PATCH"]),
    ]


class _Admin:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    async def settings(self, request: Request) -> Response:
        for name, value in (await request.json()).items():
            setattr(self._cloud.settings, name, value)
        return JSONResponse(self._cloud.settings.model_dump(mode="json"))

    async def clock(self, request: Request) -> Response:
        """Moves the cloud's clock, and with it what it charges."""
        self._cloud.skew += timedelta(seconds=(await request.json())["advance_seconds"])
        return JSONResponse({"now": self._cloud.now().isoformat()})

    async def offers(self, request: Request) -> Response:
        """Replaces all offers. Instances keep the offer that they were made from."""
        offers = [CloudOffer.model_validate(offer) for offer in await request.json()]
        self._cloud.offers = {offer.id: offer for offer in offers}
        return Response(status_code=204)

    async def add_fault(self, request: Request) -> Response:
        self._cloud.schedule.faults.append(Fault.model_validate_json(await request.body()))
        return Response(status_code=204)

    async def clear_faults(self, request: Request) -> Response:
        self._cloud.schedule.faults.clear()
        return Response(status_code=204)

    async def scripts(self, request: Request) -> Response:
        """Adds a rule; the newest that matches an instance counts."""
        self._cloud.rules.insert(0, ScriptRule.model_validate_json(await request.body()))
        return Response(status_code=204)

    async def journal(self, request: Request) -> Response:
        return JSONResponse([call.to_json() for call in self._cloud.schedule.journal])

    async def resources(self, request: Request) -> Response:
        """Everything that ever was, with its bill. Looking here wears off no hide."""
        return JSONResponse([self._truth(resource) for resource in self._cloud.resources.values()])

    async def change(self, request: Request) -> Response:
        """`{"action": "vanish" | "interrupt" | "price" | "hide" | "status" | "fail" | "release", ...}` of one instance;
        the key is its id or its attempt, and then the newest of the attempt's."""
        key, change = request.path_params["key"], await request.json()
        named = [i for i in self._cloud.instances() if key in (i.id, i.labels.get("attempt"))]
        if not named:
            return JSONResponse({"error": f"no instance {key}"}, 404)
        self._apply(named[-1], change)
        return JSONResponse(self._truth(named[-1]))

    def _apply(self, instance: Instance, change: dict[str, Any]) -> None:
        match change["action"]:
            case "vanish":
                self._cloud.vanish(instance)
            case "interrupt":
                self._cloud.interrupt(instance)
            case "fail":
                self._cloud.fail(instance, change["code"], change["message"])
            case "release":
                self._cloud.release(instance)
            case "price":
                self._cloud.set_price(instance, Decimal(change["usd_per_hour"]))
            case "hide":
                operations = frozenset(Operation(name) for name in change.get("operations", READS))
                self._cloud.hide(instance, operations, change.get("calls", 0), change.get("seconds", 0))
            case "status":
                instance.shown_status = change["status"]
            case unknown:
                raise ValueError(f"unknown action {unknown!r}")

    def _truth(self, resource: Resource) -> dict[str, Any]:
        truth: dict[str, Any] = {
            "id": resource.id,
            "type": resource.type,
            "name": resource.name,
            **resource.labels,
            "created_at": resource.created_at.isoformat(),
            "ended_at": resource.ended_at.isoformat() if resource.ended_at else None,
            "gone": resource.gone,
        }
        if isinstance(resource, Instance):
            truth |= {
                "status": resource.status,
                "offer": resource.offer.id,
                "exit_code": resource.exit_code,
                "unit_seconds": resource.offer.unit_seconds,
                "prices": [[since.isoformat(), str(price)] for since, price in resource.prices],
                "agent": [[at.isoformat(), what] for at, what in resource.agent_events],
                **_amount(self._cloud, resource),
            }
        return truth


def _amount(cloud: Cloud, instance: Instance) -> dict[str, str]:
    """The bill as an exact fraction, and as a decimal to 12 places for people."""
    amount = cloud.bill(instance)
    exact = Decimal(amount.numerator) / Decimal(amount.denominator)
    return {"charged_fraction": str(amount), "charged_usd": f"{exact:.12f}"}
