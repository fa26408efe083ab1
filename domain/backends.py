"""The backends that can be connected: what each wants to know, as data. Consoles draw their forms from it, the API
checks what was filled in, workers build providers.

A backend of a third party is an entry point of the group `headrace.providers`: its name is the backend's key, its value
a `Backend` in a module that imports nothing heavy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from domain import fleets, forms
from domain.errors import InvalidRequest
from domain.forms import FieldKind, FormField, Values
from domain.money import PricingModel
from domain.terms import DEFAULT, BillingModel, Stopped

__all__ = ["GROUP", "OURS", "Backend", "FieldKind", "FormField", "Values", "backend_of", "catalog", "check_fields"]

GROUP = "headrace.providers"
LAST = 1_000
"""The precedence of whoever states none."""
_THIS_MACHINE = "local"


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of provider. `factory` is `module:function`, called with a `ProviderContext` and the values: a name, so
    that nothing of it is imported before it is connected. None: this version has no adapter for it."""

    key: str
    title: str
    tagline: str
    fields: tuple[FormField, ...]
    factory: str | None = None
    billing: BillingModel = DEFAULT
    """How it charges what no offer has terms of its own for."""
    precedence: int = LAST
    """Its place with the placement `capacity_optimized`: the lower, the earlier."""
    remote: bool = True
    """Whether its instances reach the control plane over the network, by `HEADRACE_PUBLIC_URL`."""
    hosts: Callable[[Values], dict[str, str]] | None = None
    """Of a backend that is made of hosts: each host's name by the address at which it is known, from what was filled
    in; a host belongs to one connection. None: it is not made of hosts."""

    @property
    def available(self) -> bool:
        return self.factory is not None

    def secrets_of(self, values: Values) -> list[str]:
        """Every secret text in what was filled in."""
        return forms.secrets_of(self.fields, values)


_LIST, _SECRET, _FILE = FieldKind.LIST, FieldKind.SECRET, FieldKind.FILE
_AWS_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]+"
_AWS_SUBNET = _AWS_REGION + r"[a-z0-9-]*=subnet-[0-9a-f]{8,32}"
_GCP_REGION = r"[a-z]+(-[a-z]+)+[0-9]+"
_KEY_CHARACTERS = 16_384
_PRINTABLE = r"[ -~]+"
"""What a header may carry."""

# A minute at least, and disks once stopped: the terms of virtual machines by the second.
_VIRTUAL_MACHINE = BillingModel(
    pricing_model=PricingModel.INSTANCE_SECONDS, minimum_seconds=60, stopped=Stopped.STORAGE
)
_PER_SECOND = BillingModel(pricing_model=PricingModel.INSTANCE_SECONDS)
_STORED = BillingModel(pricing_model=PricingModel.INSTANCE_SECONDS, stopped=Stopped.STORAGE)

# In the order of the console's grid; the precedence goes by the breadth of capacity, own hardware first.
OURS = (
    Backend(
        "aws",
        "AWS",
        "Broadest GPU instance selection",
        (
            FormField("access_key_id", "Access Key ID", pattern=r"\w{16,128}"),
            FormField("secret_access_key", "Secret Access Key", _SECRET, pattern=_PRINTABLE),
            FormField(
                "regions", "Regions", _LIST, required=False, pattern=_AWS_REGION,
                help="Where machines are rented; by default us-east-1, us-east-2 and us-west-2.",
            ),
            FormField(
                "security_group_ids", "Security groups", _LIST, required=False, pattern=r"sg-[0-9a-f]{8,32}",
                help="Of the machines; by default that of the VPC, which lets in its members alone.",
            ),
            FormField(
                "subnet_ids", "Subnets", _LIST, required=False, pattern=_AWS_SUBNET,
                help="By zone, as in us-east-1a=subnet-0123abcd; by default those of the default VPC.",
            ),
        ),
        "providers.connect:aws",
        # Terminated instances take their volumes along; stopped ones keep paying for them.
        billing=_VIRTUAL_MACHINE,
        precedence=20,
    ),
    Backend(
        "azure",
        "Azure",
        "Enterprise-grade GPU VMs",
        (
            FormField("tenant_id", "Tenant ID"),
            FormField("subscription_id", "Subscription ID"),
            FormField("client_id", "Client ID (Application ID)"),
            FormField("client_secret", "Client Secret", _SECRET),
        ),
        # Machines that are stopped and not deallocated are charged in full.
        billing=_PER_SECOND,
        precedence=40,
    ),
    Backend(
        "gcp",
        "GCP",
        "TPUs & fast networking",
        (
            FormField(
                "project_id", "GCP Project ID", required=False, max_characters=100, help="By default that of the key."
            ),
            FormField(
                "service_account_key", "Service Account Key (JSON file)", _FILE, max_characters=_KEY_CHARACTERS
            ),
            FormField(
                "regions", "Regions", _LIST, required=False, pattern=_GCP_REGION,
                help="Where machines are rented; by default us-central1, us-east1, us-east4 and us-west1.",
            ),
            FormField(
                "network", "Network", required=False, pattern=r"global/networks/[a-z][a-z0-9-]{0,62}",
                help="Of the machines; by default global/networks/default.",
            ),
            FormField(
                "subnetworks", "Subnetworks", _LIST, required=False,
                pattern=rf"regions/{_GCP_REGION}/subnetworks/[a-z][a-z0-9-]{{0,62}}",
                help="One for each region, where the network makes none by itself.",
            ),
            FormField(
                "private_addresses", "Private addresses only", FieldKind.BOOLEAN, required=False,
                help="The way out is then a Cloud NAT of the network.",
            ),
        ),
        "providers.connect:gcp",
        billing=_VIRTUAL_MACHINE,
        precedence=30,
    ),
    Backend(
        "runpod",
        "RunPod",
        "Per-second billing GPU pods",
        (
            FormField(
                "api_key", "API Key", _SECRET, pattern=_PRINTABLE,
                help="It needs read and write access to pods and to GraphQL.",
            ),
            FormField(
                "include_community", "Include Community Cloud", FieldKind.BOOLEAN, required=False,
                help="Adds cheaper, less reliable Community Cloud offers alongside Secure Cloud.",
            ),
            FormField(
                "min_cuda_version", "Lowest CUDA version", required=False, pattern=r"[0-9]{1,2}\.[0-9]{1,2}",
                help="Of the hosts' drivers, such as 12.4: images of a later CUDA do not start on older ones.",
            ),
        ),
        "providers.connect:runpod",
        # A stopped pod's volume costs twice what it costs in a running one.
        billing=_STORED,
        precedence=70,
    ),
    Backend(
        "modal",
        "Modal",
        "Serverless GPUs, scale to zero",
        (
            FormField("token_id", "Token ID"),
            FormField("token_secret", "Token Secret", _SECRET),
            FormField("environment", "Environment", required=False, help="By default main."),
        ),
        # A queue comes first; the container's time is what is charged.
        billing=BillingModel(
            pricing_model=PricingModel.INSTANCE_SECONDS, stopped=Stopped.NOTHING, boot_charged=False
        ),
        precedence=80,
    ),
    Backend(
        "nebius",
        "Nebius",
        "EU-based NVIDIA GPU cloud",
        (
            FormField("service_account_id", "Service Account ID"),
            FormField("public_key_id", "Public Key ID"),
            FormField("private_key", "Private key .pem file", _FILE, max_characters=_KEY_CHARACTERS),
        ),
        # A preempted machine shows as stopped, and its disk is charged.
        billing=_STORED,
        precedence=50,
    ),
    Backend(
        "oci",
        "Oracle Cloud (OCI)",
        "Bare-metal RDMA GPU clusters",
        (
            FormField("user_ocid", "User OCID"),
            FormField("tenancy_ocid", "Tenancy OCID"),
            FormField("fingerprint", "Fingerprint"),
            FormField("region", "Home Region"),
            FormField("private_key", "Private Key (.pem file)", _FILE, max_characters=_KEY_CHARACTERS),
        ),
        # GPU shapes are charged while they are stopped.
        billing=BillingModel(pricing_model=PricingModel.INSTANCE_SECONDS, minimum_seconds=60),
        precedence=60,
    ),
    Backend(
        "vastai",
        "Vast.ai",
        "Cheapest GPU marketplace",
        (FormField("api_key", "API Key", _SECRET),),
        # Being outbid stops the instance; its storage is charged until it is destroyed.
        billing=_STORED,
        precedence=90,
    ),
    Backend(
        "ssh",
        "SSH / On-prem",
        "Bring your own GPU servers",
        fleets.FORM,
        "providers.connect:ssh",
        remote=False,
        hosts=fleets.addresses_of,
        # A host is leased until its container is confirmed gone.
        billing=DEFAULT,
        precedence=10,
    ),
)  # fmt: skip


def catalog() -> dict[str, Backend]:
    """Every backend by its key: ours, then those of third parties, which cannot take the place of ours."""
    ours = {backend.key: backend for backend in OURS}
    return ours | {key: found for key, found in _third_parties().items() if key not in ours}


@cache
def _third_parties() -> dict[str, Backend]:
    """Read once in a process. An entry point that cannot be loaded raises: it was installed on purpose."""
    found = {}
    for entry in entry_points(group=GROUP):
        backend = entry.load()
        if not isinstance(backend, Backend) or backend.key != entry.name:
            raise TypeError(f"the entry point {entry.name!r} of {GROUP} is no Backend of that key")
        found[backend.key] = backend
    return found


def precedence_of(key: str) -> int:
    """Where a backend stands with `capacity_optimized`: this machine comes first, what is no backend last."""
    backend = catalog().get(key)
    return backend.precedence if backend else 0 if key == _THIS_MACHINE else LAST


def backend_of(key: str) -> Backend:
    """The backend that is to be connected.

    Raises:
        InvalidRequest: there is none, or this version has no adapter for it; the message lists those that there are.
    """
    known = catalog()
    found = known.get(key)
    if found is not None and found.available:
        return found
    available = ", ".join(name for name, backend in known.items() if backend.available)
    what = f"{found.title} cannot be connected in this version" if found else f"there is no backend {key[:64]!r}"
    raise InvalidRequest(f"provider: {what}; available are {available}", field="provider", code="backend_unavailable")


def check_fields(backend: Backend, given: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> Values:
    """What was filled in, checked; a field that is absent, or a secret that is blank, keeps its value of `kept`.

    Raises:
        InvalidRequest: names the field and the limit; never a value, which may be secret.
    """
    return forms.read(backend.title, backend.fields, given, kept)
