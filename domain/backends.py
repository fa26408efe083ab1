"""The backends that can be connected: what each wants to know, as data. Consoles draw their forms from it, the API
checks what was filled in, workers build providers.

A backend of a third party is an entry point of the group `headrace.providers`: its name is the backend's key, its value
a `Backend` in a module that imports nothing heavy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from domain.errors import InvalidRequest

GROUP = "headrace.providers"
Values = dict[str, Any]
"""What was filled in, by field: text, a boolean, or a list of texts."""
_MOST_ENTRIES = 64
_ENTRY_CHARACTERS = 256


class FieldKind(StrEnum):
    TEXT = "text"
    SECRET = "secret"  # noqa: S105 - a kind of field, not a secret
    """Sealed, and never shown again."""
    FILE = "file"
    """The text of a file; as secret as `secret`."""
    BOOLEAN = "boolean"
    LIST = "list"
    """Of texts."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form. `pattern` is what a text, or each entry of a list, must match whole."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    required: bool = True
    help: str = ""
    pattern: str | None = None
    max_characters: int = 256

    @property
    def secret(self) -> bool:
        return self.kind in {FieldKind.SECRET, FieldKind.FILE}


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of provider. `factory` is `module:function`, called with a `ProviderContext` and the values: a name, so
    that nothing of it is imported before it is connected. None: this version has no adapter for it."""

    key: str
    title: str
    tagline: str
    fields: tuple[FormField, ...]
    factory: str | None = None
    remote: bool = True
    """Whether its instances reach the control plane over the network, by `HEADRACE_PUBLIC_URL`."""

    @property
    def available(self) -> bool:
        return self.factory is not None

    @property
    def secret_fields(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields if field.secret)


_LIST, _SECRET, _FILE = FieldKind.LIST, FieldKind.SECRET, FieldKind.FILE
_AWS_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]+"
_GCP_REGION = r"[a-z]+(-[a-z]+)+[0-9]+"
_KEY_CHARACTERS = 16_384
_HOSTNAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,7}"
_SSH_HOST = r"([A-Za-z_][A-Za-z0-9_.-]*@)?([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?"

# In the order of the console's grid.
OURS = (
    Backend(
        "aws",
        "AWS",
        "Broadest GPU instance selection",
        (
            FormField("access_key_id", "Access Key ID", pattern=r"\w{16,128}"),
            FormField("secret_access_key", "Secret Access Key", _SECRET),
            FormField(
                "regions", "Regions", _LIST, required=False, pattern=_AWS_REGION,
                help="Where machines are rented; by default us-east-1, us-east-2 and us-west-2.",
            ),
            FormField(
                "security_group_ids", "Security groups", _LIST, required=False, pattern=r"sg-[0-9a-f]{8,32}",
                help="Of the machines; by default that of the VPC, which lets nobody in.",
            ),
        ),
        "providers.connect:aws",
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
        ),
        "providers.connect:gcp",
    ),
    Backend(
        "runpod",
        "RunPod",
        "Per-second billing GPU pods",
        (
            FormField("api_key", "API Key", _SECRET, help="It needs read and write access to pods and to GraphQL."),
            FormField(
                "include_community", "Include Community Cloud", FieldKind.BOOLEAN, required=False,
                help="Adds cheaper, less reliable Community Cloud offers alongside Secure Cloud.",
            ),
        ),
        "providers.connect:runpod",
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
    ),
    Backend("vastai", "Vast.ai", "Cheapest GPU marketplace", (FormField("api_key", "API Key", _SECRET),)),
    Backend(
        "ssh",
        "SSH / On-prem",
        "Bring your own GPU servers",
        (
            FormField("user", "SSH user", required=False, help="By default ubuntu."),
            FormField("port", "SSH port", required=False, pattern=r"[0-9]{1,5}", help="By default 22."),
            FormField("private_key", "Private key", _FILE, max_characters=_KEY_CHARACTERS, help="No passphrase."),
            FormField(
                "hosts", "Hosts", _LIST, pattern=_SSH_HOST,
                help="Each as [user@]host[:port]; docker or podman is installed, sudo asks for no password.",
            ),
            FormField("bastion_hostname", "Bastion", required=False, pattern=_HOSTNAME),
            FormField("bastion_port", "Bastion port", required=False, pattern=r"[0-9]{1,5}", help="By default 22."),
            FormField("bastion_user", "Bastion user", required=False, help="By default the SSH user."),
            FormField(
                "bastion_private_key", "Bastion private key", _FILE, required=False, max_characters=_KEY_CHARACTERS,
                help="By default the private key.",
            ),
            FormField(
                "price_usd_hr", "USD per hour of a host", required=False, pattern=r"[0-9]{1,5}(\.[0-9]{1,6})?",
                help="By default 0; a job pays for its part of a host.",
            ),
            FormField(
                "cpu_slots", "Jobs at once", required=False, pattern=r"[1-9][0-9]{0,2}",
                help="On each host without GPUs; by default 1.",
            ),
        ),
        "providers.connect:ssh",
        remote=False,
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
    fields = {field.name: field for field in backend.fields}
    for name in given:
        if name not in fields:
            allowed = ", ".join(fields)
            raise InvalidRequest(
                f"fields: {backend.title} has no field {name[:64]!r}; it has {allowed}", field="fields"
            )
    values: Values = {}
    for name, field in fields.items():
        value = _read(field, given[name]) if name in given else None
        if value is None and kept is not None and (name not in given or field.secret):
            value = kept.get(name)
        if value is not None:
            values[name] = value
        elif field.required:
            raise InvalidRequest(f"fields.{name}: {field.label} is missing", field=f"fields.{name}")
    return values


def _read(field: FormField, value: Any) -> Any:
    """The value as it is kept; None where it was left blank."""
    where = f"fields.{field.name}"
    if field.kind is FieldKind.BOOLEAN:
        if value is not None and not isinstance(value, bool):
            raise InvalidRequest(f"{where}: must be true or false", field=where)
        return value
    if field.kind is FieldKind.LIST:
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
            raise InvalidRequest(
                f"{where}: must be a list of at most {_MOST_ENTRIES}", field=where, limit=_MOST_ENTRIES
            )
        return [_text(field, entry, where, _ENTRY_CHARACTERS) for entry in value] or None
    if value is None or value == "":
        return None
    text = _text(field, value, where, field.max_characters)
    # What is pasted ends in a line more often than not. Keys in PEM want theirs.
    return text if field.kind is FieldKind.FILE else text.strip() or None


def _text(field: FormField, value: Any, where: str, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}: must be text", field=where)
    if len(value) > most:
        raise InvalidRequest(f"{where}: has more than {most} characters", field=where, limit=most)
    printable = value.isprintable() if not field.secret else "\x00" not in value
    if not printable or (field.pattern is not None and not re.fullmatch(field.pattern, value.strip())):
        raise InvalidRequest(f"{where}: is no {field.label}", field=where)
    return value
