"""AWS for tests, on 127.0.0.1: moto behind a server that does what moto does not, and spoils what a test asks for.

Of its own it has client tokens (with mismatches, and tokens of the dead), the price list, and the parameters that name
machine images; its pages have two items. Requests are told apart by what they ask (`_operation`); a fault waits for the
next one of its operation.
"""

import base64
import contextlib
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import Instance, StateReason
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.test import EnvironBuilder, run_wsgi_app

from domain.clock import Clock, utc_now
from providers.fake.billing import Price, charge
from tests.providers import cloud_http
from tests.providers.cloud_http import due, serving

STOCK = ("m7i.large", "m7i.4xlarge", "g5.xlarge", "g5.12xlarge", "g6f.large", "p5.48xlarge", "p4d.24xlarge")
PAGE_SIZE = "2"
_ON_DEMAND = {
    "m7i.large": "0.1008000000", "m7i.4xlarge": "0.8064000000", "g5.xlarge": "1.0060000000",
    "g5.12xlarge": "5.6720000000", "p5.48xlarge": "55.0400000000", "p4d.24xlarge": "21.9576425000",
}  # fmt: skip


@dataclass
class Answer(cloud_http.Answer):
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/xml"})


@dataclass
class Call:
    operation: str
    action: str
    region: str
    form: dict[str, str]
    raw: str


Fault = cloud_http.Fault[Call]


@dataclass
class Charge:
    """What a machine costs, as AWS has it: each begun second, a minute at least, at the price that held then."""

    attempt: str
    instance: Instance
    zone: str
    began_at: datetime
    prices: list[Price]
    spot: bool
    ended_at: datetime | None = None

    @property
    def usd(self) -> Fraction:
        assert self.ended_at is not None, f"{self.instance.id} is charged still"
        return charge(self.began_at, self.ended_at, self.prices, unit_seconds=1, minimum_seconds=60)


class AwsServer:
    """The server's state. Reads and faults may come from any thread."""

    def __init__(self) -> None:
        self.page_size = PAGE_SIZE
        self.stock: tuple[str, ...] = STOCK
        self.prices: dict[str, str] = dict(_ON_DEMAND)
        self.spot_prices: dict[str, str] = {}
        self.quotas: dict[str, float] = {}
        """vCPUs by the code of the quota."""
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.clock: Clock = utc_now
        self.bill: list[Charge] = []
        self.silent_seconds = 1.5
        self.consoles: dict[str, str] = {}
        """What the console of an instance shows, where that is not moto's own."""
        self.booted: Callable[[Instance, bytes], None] = lambda instance, user_data: None
        """Called in the server's thread for each new instance, with what cloud-init would run."""
        self._tokens: dict[str, tuple[str, Answer, list[str]]] = {}
        self._hidden: dict[str, int] = {}
        self._lingering: dict[str, int] = {}
        self._lock = threading.RLock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._image: str | None = None

    # What tests look at and do ------------------------------------------------------------------------------------

    def instances(self, attempt: str | None = None) -> list[Instance]:
        """moto's own instances that live, in all regions."""
        return [
            i for i in self._all() if i.state != "terminated" and attempt in (None, self.tags(i)["headrace-attempt"])
        ]

    def instance(self, attempt: str) -> Instance:
        """The newest of the attempt, dead or alive."""
        return [i for i in self._all() if self.tags(i)["headrace-attempt"] == attempt][-1]

    def tags(self, made: Any) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in made.get_tags()}

    @property
    def unseen(self) -> set[str]:
        """The instances that no read has shown yet."""
        return {instance.id for instance in self.instances() if instance.id in self._hidden}

    def user_data(self, instance: Instance) -> bytes:
        for call in self.calls:
            if call.action == "RunInstances" and call.form.get("ClientToken") == instance.client_token:
                return base64.b64decode(call.form["UserData"])
        raise LookupError(instance.id)

    def script(self, instance: Instance) -> str:
        """What cloud-init runs on it."""
        return gzip.decompress(self.user_data(instance)).decode()

    def backend(self, region: str) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID][region]

    def clear(self) -> None:
        """As it was at the beginning, but for what moto took long to load."""
        for region in self._regions():
            backend = self.backend(region)
            for volume_id in [v.id for v in backend.volumes.values() if v.status == "available"]:
                backend.delete_volume(volume_id)
            for reservation in list(backend.reservations.values()):
                for instance in reservation.instances:
                    if instance.state != "terminated":
                        instance.terminate()
            backend.reservations.clear()
            for group in self.groups(region):
                backend.delete_security_group(group_id=group.id)
        self.faults.clear()
        self.calls.clear()
        self.quotas = {}
        self.clock, self.bill = utc_now, []
        self._hidden.clear()
        self._lingering.clear()
        self.page_size = PAGE_SIZE
        self.stock, self.prices, self.spot_prices = STOCK, dict(_ON_DEMAND), {}

    def price_spot(self, machine_type: str, price: str) -> None:
        """What spot machines of the type cost from now on, those that run too."""
        self.spot_prices[machine_type] = price
        for open_charge in self.bill:
            if open_charge.spot and open_charge.ended_at is None and open_charge.instance.instance_type == machine_type:
                open_charge.prices.append((self.clock(), Fraction(price)))

    def end(self, instance: Instance, code: str, message: str) -> None:
        """AWS ends the instance, and says why."""
        self._terminate(instance)
        instance.state_reason = StateReason(message, code)

    def vanish(self, instance: Instance) -> None:
        """Not even a terminated instance shows any more."""
        self._terminate(instance)
        for region in self._regions():
            reservations = self.backend(region).reservations
            for key in [k for k, r in reservations.items() if instance in r.instances]:
                del reservations[key]

    def hide(self, instance_id: str, calls: int) -> None:
        if calls:
            self._hidden[instance_id] = calls

    def linger(self, instance_id: str, calls: int) -> None:
        self._lingering[instance_id] = calls

    def groups(self, region: str = "us-east-1") -> list[Any]:
        """The security groups that somebody made."""
        return [g for of in self.backend(region).groups.values() for g in of.values() if g.name != "default"]

    # Serving ------------------------------------------------------------------------------------------------------

    def take(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[cloud_http.Answer, str | None]:
        """The answer, and the way to lose it."""
        call = _read_call(headers, body)
        with self._lock:
            self.calls.append(call)
            fault = due(self.faults, call.operation)
            if fault is not None and fault.before is not None:
                return fault.before(call), None
            answer: cloud_http.Answer = self._answer(method, path, headers, call)
            if fault is not None and fault.spoil is not None:
                answer = fault.spoil(call, answer)
            return answer, fault.loss if fault else None

    def unwell(self, way: str) -> Answer:
        if way == "internal":
            return ec2_error(500, "InternalError", "An internal error has occurred")
        return ec2_error(503, "Unavailable", "The server is overloaded")

    def _answer(self, method: str, path: str, headers: dict[str, str], call: Call) -> Answer:
        match call.action:
            case "ListServiceQuotas":
                return self._quotas(json.loads(call.raw))
            case "GetProducts":
                return self._products(json.loads(call.raw))
            case "GetParameter":
                value = {"Parameter": {"Name": json.loads(call.raw)["Name"], "Value": self._ubuntu()}}
                return _json(value)
            case "GetConsoleOutput" if call.form["InstanceId"] in self.consoles:
                return _console(call.form["InstanceId"], self.consoles[call.form["InstanceId"]])
            case "DeleteSecurityGroup" if self._holders(call.form["GroupId"]):
                return ec2_error(400, "DependencyViolation", "resource sg has a dependent object")
            case "RunInstances" if call.form.get("DryRun") != "true":
                return self._run(method, path, headers, call)
            case "DescribeInstanceTypes" | "DescribeInstanceTypeOfferings":
                self._narrow_to_stock(call)
            case "DescribeInstances":
                self._settle(call)
        answer = self._ask_moto(method, path, headers, call)
        if call.action == "TerminateInstances":
            self._close_charges()
        if call.action == "DescribeInstances":
            return self._seen(call, answer)
        return self._priced(answer) if call.action == "DescribeSpotPriceHistory" else answer

    def _ask_moto(self, method: str, path: str, headers: dict[str, str], call: Call) -> Answer:
        form = dict(call.form)
        # moto takes user data for text.
        form.pop("UserData", None)
        if "MaxResults" in form:
            form["MaxResults"] = self.page_size
        kept = {k: v for k, v in headers.items() if k.lower() not in ("content-length", "host", "connection")}
        kept["Host"] = f"ec2.{call.region}.amazonaws.com"
        builder = EnvironBuilder(path=path, method=method, headers=kept, data=urlencode(form).encode())
        iterator, status, answered = run_wsgi_app(self._moto, builder.get_environ(), buffered=True)
        return Answer(
            int(status.split()[0]), b"".join(iterator), {"Content-Type": answered.get("Content-Type", "text/xml")}
        )

    def _run(self, method: str, path: str, headers: dict[str, str], call: Call) -> Answer:
        """`RunInstances` with the client tokens that moto does not know."""
        token = call.form["ClientToken"]
        asked = urlencode(sorted(call.form.items()))
        if token in self._tokens:
            before, answer, ids = self._tokens[token]
            if before != asked:
                return ec2_error(400, "IdempotentParameterMismatch", "the arguments differ from those of the token")
            if any(i.id in ids and i.state == "terminated" for i in self._all()):
                return ec2_error(400, "IdempotentInstanceTerminated", "the instance of the token is terminated")
            return answer
        answer = self._ask_moto(method, path, headers, call)
        if answer.status == 200:
            ids = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body.decode())
            now = self.clock()
            answer.body = re.sub(rb"<launchTime>[^<]*", f"<launchTime>{now.isoformat()}".encode(), answer.body)
            self._tokens[token] = (asked, answer, ids)
            for instance in [i for i in self._all() if i.id in ids]:
                instance.launch_time = now
                self.bill.append(self._charge(instance, call, now))
                self.booted(instance, base64.b64decode(call.form.get("UserData", "")))
        return answer

    def _charge(self, instance: Instance, call: Call, now: datetime) -> Charge:
        spot = call.form.get("InstanceMarketOptions.MarketType") == "spot"
        name = instance.instance_type
        price = self._spot_price(name) if spot else self.prices[name]
        zone = call.form["Placement.AvailabilityZone"]
        return Charge(self.tags(instance)["headrace-attempt"], instance, zone, now, [(now, Fraction(price))], spot)

    def _terminate(self, instance: Instance) -> None:
        instance.terminate()
        self._close_charges()

    def _close_charges(self) -> None:
        for open_charge in self.bill:
            if open_charge.ended_at is None and open_charge.instance.state == "terminated":
                open_charge.ended_at = self.clock()

    def _settle(self, call: Call) -> None:
        """A delete that lingered happens once enough reads saw the instance running."""
        for instance_id, left in list(self._lingering.items()):
            if left <= 0:
                del self._lingering[instance_id]
                self._terminate(next(i for i in self._all() if i.id == instance_id))
            else:
                self._lingering[instance_id] = left - 1

    def _seen(self, call: Call, answer: Answer) -> Answer:
        """Without the instances that reads do not see yet."""
        for instance_id in [i for i in self._hidden if i.encode() in answer.body]:
            self._hidden[instance_id] -= 1
            if self._hidden[instance_id] <= 0:
                del self._hidden[instance_id]
            if "InstanceId.1" in call.form:
                return ec2_error(400, "InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")

            def is_of(item: ElementTree.Element, wanted: str = instance_id) -> bool:
                return any(element.text == wanted for element in item.iter() if _name(element) == "instanceId")

            answer = edited(answer, "reservationSet", lambda items, is_of=is_of: [i for i in items if not is_of(i)])
        return answer

    def _narrow_to_stock(self, call: Call) -> None:
        for key in [k for k, v in call.form.items() if re.fullmatch(r"Filter\.\d+\.Name", k) and v == "instance-type"]:
            prefix = key.removesuffix("Name") + "Value."
            for old in [k for k in call.form if k.startswith(prefix)]:
                del call.form[old]
            call.form |= {f"{prefix}{number}": name for number, name in enumerate(self.stock, 1)}

    def _spot_price(self, name: str) -> str:
        return self.spot_prices.get(name) or f"{float(self.prices.get(name, '1')) / 2:.6f}"

    def _priced(self, answer: Answer) -> Answer:
        def price(items: list[ElementTree.Element]) -> list[ElementTree.Element]:
            for item in items:
                named = {_name(element): element for element in item}
                named["spotPrice"].text = self._spot_price(named["instanceType"].text or "")
            return items

        return edited(answer, "spotPriceHistorySet", price)

    def _products(self, asked: dict[str, Any]) -> Answer:
        terms = {f["Field"]: f["Value"] for f in asked["Filters"]}
        assert terms["operatingSystem"] == "Linux"
        if max(map(len, terms.values())) > 1024:
            body = {"__type": "InvalidParameterException", "message": "a value has more than 1024 characters"}
            return _json(body, 400)
        found = [t for t in terms["instanceType"].split(",") if t in self.prices]
        products = [
            json.dumps(
                {
                    "product": {"attributes": {"instanceType": name, "regionCode": terms["regionCode"]}},
                    "terms": {"OnDemand": {"A": {"priceDimensions": {"B": {
                        "unit": "Hrs", "pricePerUnit": {"USD": self.prices[name]}}}}}},
                }
            )
            for name in found
        ]  # fmt: skip
        start, size = int(asked.get("NextToken", "0")), asked["MaxResults"]
        page: dict[str, Any] = {"PriceList": products[start : start + size]}
        if start + size < len(products):
            page["NextToken"] = str(start + size)
        return _json(page)

    def _quotas(self, asked: dict[str, Any]) -> Answer:
        assert asked["ServiceCode"] == "ec2"
        quotas = [{"ServiceCode": "ec2", "QuotaCode": code, "Value": value} for code, value in self.quotas.items()]
        start, size = int(asked.get("NextToken", "0")), int(self.page_size)
        page: dict[str, Any] = {"Quotas": quotas[start : start + size]}
        if start + size < len(quotas):
            page["NextToken"] = str(start + size)
        return _json(page)

    def _ubuntu(self) -> str:
        if self._image is None:
            images = self.backend("us-east-1").describe_images()
            self._image = next(i.id for i in images if "ubuntu" in (i.name or "") and i.architecture == "x86_64")
        return self._image

    def _holders(self, group_id: str) -> list[Instance]:
        return [i for i in self.instances() if any(g.id == group_id for g in i.security_groups)]

    def _regions(self) -> tuple[str, ...]:
        return ("us-east-1", "eu-west-1")

    def _all(self) -> list[Instance]:
        return [
            instance
            for region in self._regions()
            for reservation in self.backend(region).reservations.values()
            for instance in reservation.instances
            if "headrace-attempt" in self.tags(instance)
        ]


def ec2_error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Answer:
    """An error as EC2 writes it."""
    body = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors></Response>"
    )
    return Answer(status, body.encode(), {"Content-Type": "text/xml", **(headers or {})})


def _json(body: dict[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def json_error(status: int, code: str, message: str) -> Answer:
    """An error as the services write it that speak JSON: prices, parameters, quotas."""
    return _json({"__type": code, "message": message}, status)


def _console(instance_id: str, text: str) -> Answer:
    output = base64.b64encode(text.encode()).decode()
    body = f"<instanceId>{instance_id}</instanceId><output>{output}</output>"
    return Answer(200, f"<GetConsoleOutputResponse>{body}</GetConsoleOutputResponse>".encode())


def error_for(call: Call, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Answer:
    """An error as the call's service writes it."""
    answer = ec2_error(status, code, message, headers)
    if call.action == "GetCallerIdentity":
        answer.body = (
            f"<ErrorResponse><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></ErrorResponse>"
        ).encode()
    return answer


def edited(
    answer: Answer, name: str, change: Callable[[list[ElementTree.Element]], list[ElementTree.Element]]
) -> Answer:
    """The answer with the items of one of its lists changed."""
    root = ElementTree.fromstring(answer.body)
    namespace = root.tag.partition("}")[0].removeprefix("{") if root.tag.startswith("{") else ""
    for parent in root.iter():
        if _name(parent) == name:
            parent[:] = change(list(parent))
            break
    if namespace:
        ElementTree.register_namespace("", namespace)
    return Answer(answer.status, ElementTree.tostring(root), answer.headers)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _read_call(headers: dict[str, str], body: bytes) -> Call:
    scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", headers.get("Authorization", ""))
    region = scope.group(1) if scope else "us-east-1"
    target = headers.get("X-Amz-Target", "")
    if target:
        action, form = target.rpartition(".")[2], {}
    else:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        action = form.get("Action", "")
    return Call(_operation(action, form), action, region, form, body.decode())


def _operation(action: str, form: dict[str, str]) -> str:
    filters = {v for k, v in form.items() if re.fullmatch(r"Filter\.\d+\.Name", k)}
    match action:
        case "GetCallerIdentity":
            return "verify"
        case "RunInstances":
            return "verify" if form.get("DryRun") == "true" else "create"
        case "DescribeInstanceTypes" | "DescribeInstanceTypeOfferings" | "DescribeSpotPriceHistory" | "GetProducts":
            return "offers"
        case "TerminateInstances":
            return "delete"
        case "GetConsoleOutput":
            return "logs"
        case "DescribeInstances" if "InstanceId.1" in form or "instance-id" in filters:
            return "get"
        case "DescribeInstances":
            return "find" if "tag:headrace-attempt" in filters else "list"
    return action


@contextlib.contextmanager
def serve() -> Iterator[tuple[AwsServer, str]]:
    """A server and its URL."""
    aws = AwsServer()
    with serving(aws) as url:
        yield aws, url
