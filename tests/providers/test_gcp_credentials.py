"""Keys of service accounts, options, and the SDK at rest."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from domain.backends import catalog, check_fields
from domain.errors import AuthError, InvalidRequest
from providers import connect
from providers.base import OfferQuery, ProviderContext
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials, GcpOptions
from tests.providers.conformance import OWNER
from tests.providers.gcp_fake import Fault, GcpServer, google_error, stock
from tests.providers.gcp_support import MakeProvider, offer_for, service_account_key, spec_for


@pytest.fixture
def provider(make_gcp_provider: MakeProvider) -> GcpProvider:
    return make_gcp_provider()


async def test_a_key_that_was_revoked_is_told_by_every_call(provider: GcpProvider, gcp: GcpServer) -> None:
    handle = await provider.create(spec_for(), await offer_for(provider))
    gcp.revoked = True
    assert (await provider.verify()).status == "auth"
    for call in (
        provider.get(handle),
        provider.terminate(handle),
        provider.list_owned(),
        provider.offers(OfferQuery()),
    ):
        with pytest.raises(AuthError):
            await call
    gcp.revoked = False
    assert await provider.get(handle) is not None


async def test_a_price_list_that_may_not_be_read_is_told_by_verify(provider: GcpProvider, gcp: GcpServer) -> None:
    refuse = google_error(403, "SERVICE_DISABLED", "Cloud Billing API has not been used in project 1 before.")
    gcp.faults += [Fault("verify"), Fault("verify", before=lambda call: refuse)]
    report = await provider.verify()
    assert report.status == "permission"
    assert "Cloud Billing API" in report.message


def test_credentials_are_the_fields_of_the_form_and_show_no_secret() -> None:
    assert set(GcpCredentials.model_fields) == {"project_id", "service_account_key"}
    credentials = GcpCredentials(service_account_key=SecretStr(service_account_key()))
    assert credentials.project_id == stock.PROJECT
    assert "PRIVATE KEY" not in repr(credentials) + credentials.model_dump_json()
    other = GcpCredentials(project_id="another-project", service_account_key=SecretStr(service_account_key()))
    assert other.project_id == "another-project"


def test_tokens_come_from_google_whatever_the_key_says() -> None:
    credentials = GcpCredentials(service_account_key=SecretStr(service_account_key(token_uri="http://10.0.0.1/")))
    assert credentials.key()["token_uri"] == "https://oauth2.googleapis.com/token"


@pytest.mark.parametrize(
    "key",
    [
        "not JSON", "[]", "{}", '{"type": "authorized_user"}', service_account_key(private_key=""),
        service_account_key(client_email=1), service_account_key(universe_domain="cloud.example"),
        service_account_key(project_id="No Project"),
    ],
)  # fmt: skip
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GcpCredentials.model_validate({"service_account_key": key})
    assert "PRIVATE KEY" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"regions": ("nowhere",)}, {"page_size": 501}, {"unheard_of": 1}, {"lifetime_seconds": 121 * 86_400},
        {"cpu_image": "ubuntu"}, {"cpu_families": ('e2"',)},
    ],
)  # fmt: skip
def test_options_that_are_none_are_refused(make_gcp_provider: MakeProvider, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_gcp_provider(**options)


def test_the_form_takes_the_network_of_the_machines() -> None:
    subnetwork = "regions/us-east1/subnetworks/jobs"
    network = {"network": "global/networks/jobs", "subnetworks": [subnetwork], "private_addresses": True}
    given = {"service_account_key": service_account_key(), "regions": ["us-east1"], **network}
    context = ProviderContext("gcp-1", OWNER, "/nonexistent")
    connect.build("gcp", context, check_fields(catalog()["gcp"], given))
    options = GcpOptions.model_validate(context.options)
    assert (options.network, options.subnetworks) == ("global/networks/jobs", {"us-east1": subnetwork})
    assert not options.public_address
    assert options.regions == ("us-east1",)
    with pytest.raises(InvalidRequest, match="subnetworks"):
        check_fields(catalog()["gcp"], {**given, "subnetworks": ["jobs"]})


def test_the_sdk_is_not_loaded_before_the_first_call() -> None:
    code = f"""
import sys
from pydantic import SecretStr
from providers.gcp.provider import GcpProvider
from providers.gcp.settings import GcpCredentials
from providers.base import ProviderContext
credentials = GcpCredentials(service_account_key=SecretStr({service_account_key()!r}))
GcpProvider(ProviderContext("gcp-1", "owner", "/nonexistent"), credentials)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("google", "requests", "proto", "urllib3")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
