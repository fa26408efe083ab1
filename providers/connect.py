"""From what was filled in to a provider. Each backend's module is imported when the first connection to it is built."""

from importlib import import_module

from pydantic import ValidationError

from domain.backends import OURS, Values, catalog
from domain.errors import ProviderError, ProviderRejected
from providers.base import Provider, ProviderContext


def build(backend_key: str, context: ProviderContext, values: Values) -> Provider:
    """The provider of a connection. Blocks while it imports: call it in a thread.

    Raises:
        ProviderRejected: there is no adapter here, its package is not installed, or the values are none of its own.
    """
    backend = catalog().get(backend_key)
    if backend is None or backend.factory is None:
        raise ProviderRejected(f"this process has no adapter for {backend_key!r}")
    module, _, name = backend.factory.partition(":")
    try:
        provider: Provider = getattr(import_module(module), name)(context, values)
    except ImportError as error:
        missing = f"headrace[{backend_key}]" if backend in OURS else "it"
        raise ProviderRejected(
            f"this process lacks the package {error.name}: install {missing} where workers run"
        ) from None
    except ValidationError as error:
        # Where and what, never the value: it may be secret.
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProviderRejected(f"{where}: {first['msg']}" if where else first["msg"]) from None
    except ProviderError:
        raise
    except Exception as error:
        # What one connection was filled in with must not keep others from being built. Its text may hold secrets.
        raise ProviderRejected(f"its adapter cannot read what was filled in ({type(error).__name__})") from None
    return provider


def aws(context: ProviderContext, values: Values) -> Provider:
    """Machines may be left in regions that were used before, by default too."""
    from providers.aws.provider import AwsProvider
    from providers.aws.settings import AwsCredentials, AwsOptions

    given = _given(values, "regions", "security_group_ids")
    default = AwsOptions().regions
    former = {*default, *(values.get("former_regions") or ())}
    given["subnet_ids"] = dict(entry.split("=", 1) for entry in values.get("subnet_ids") or ())
    given["former_regions"] = sorted(former - {*(given.get("regions") or default)})
    context.options = {"workload_networks": context.workload_networks, **context.options, **given}
    return AwsProvider(context, AwsCredentials(**_given(values, "access_key_id", "secret_access_key")))


def gcp(context: ProviderContext, values: Values) -> Provider:
    """Its sweeps look everywhere, so that regions may change."""
    from providers.gcp.provider import GcpProvider
    from providers.gcp.settings import GcpCredentials

    subnetworks = {path.split("/")[1]: path for path in values.get("subnetworks") or ()}
    context.options = {
        "workload_networks": context.workload_networks,
        **context.options,
        **_given(values, "regions", "network"),
        "subnetworks": subnetworks,
        "public_address": not values.get("private_addresses"),
    }
    return GcpProvider(context, GcpCredentials(**_given(values, "project_id", "service_account_key")))


def runpod(context: ProviderContext, values: Values) -> Provider:
    """Secure Cloud, and Community Cloud where it was asked for."""
    from providers.runpod.credentials import RunPodCredentials
    from providers.runpod.provider import RunPodProvider

    return RunPodProvider(
        context, RunPodCredentials(**_given(values, "api_key", "include_community", "min_cuda_version"))
    )


def ssh(context: ProviderContext, values: Values) -> Provider:
    """A fleet of hosts, behind a bastion where one is named."""
    from providers.ssh.provider import SshProvider
    from providers.ssh.settings import Fleet

    given = _given(values, "user", "port", "private_key", "price_usd_hr", "cpu_slots", "hosts")
    if values.get("bastion_hostname"):
        names = ("hostname", "port", "user", "private_key", "host_key")
        given["bastion"] = {name: values[key] for name in names if values.get(key := f"bastion_{name}") is not None}
    context.options = {
        "agent_socket": context.agent_socket,
        "allowed_networks": context.fleet_networks,
        "workload_networks": context.workload_networks,
        "multi_tenant": context.multi_tenant,
        **context.options,
    }
    return SshProvider(context, Fleet.model_validate(given))


def _given(values: Values, *names: str) -> Values:
    return {name: values[name] for name in names if values.get(name) is not None}
