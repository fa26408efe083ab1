"""A connection to EC2: its console, credentials and options, and the SDK. boto3 itself, against moto."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from domain.backends import backend_of, check_fields
from providers.aws.provider import AwsProvider, _after
from providers.aws.settings import AwsCredentials
from providers.base import OfferQuery, ProviderContext
from providers.connect import build
from tests.providers.aws_server import AwsServer, Fault, ec2_error
from tests.providers.aws_support import CREDENTIALS, SECRET_KEY, SERVICES, MakeProvider, offer_for, spec_for
from tests.providers.conformance import OWNER


@pytest.fixture
def provider(make_aws_provider: MakeProvider) -> AwsProvider:
    return make_aws_provider()


def test_the_console_goes_on_from_its_cursor_and_is_whole_once_it_rolled_on() -> None:
    first = _after(None, "one\n")
    second = _after(first.cursor, "one\ntwo\n")
    assert (first.text, second.text) == ("one\n", "two\n")
    assert _after(second.cursor, "one\ntwo\n").text == ""
    assert _after(second.cursor, "two\nthree\n").text == "two\nthree\n"
    assert _after("nonsense", "one\n").text == "one\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=8), max_size=8))
def test_a_console_that_grows_is_read_without_gap_or_double(pieces: list[str]) -> None:
    cursor, console, read = None, "", ""
    for piece in pieces:
        console += piece
        page = _after(cursor, console)
        cursor, read = page.cursor, read + page.text
    assert read == console


@pytest.mark.parametrize("older", [False, True], ids=["nitro", "xen"])
async def test_the_console_is_read_as_it_is_now_where_the_machine_can_show_that(
    provider: AwsProvider, aws: AwsServer, older: bool
) -> None:
    handle = await provider.create(spec_for(), await offer_for(provider))
    aws.consoles[handle.provider_id] = "booted\n"
    refuse = ec2_error(400, "UnsupportedOperation", "This instance type does not support retrieving the latest logs.")
    if older:
        aws.faults.append(Fault("logs", before=lambda _: refuse))
    assert (await provider.logs(handle, None)).text == "booted\n"
    asked = [call.form.get("Latest") for call in aws.calls if call.action == "GetConsoleOutput"]
    assert asked == (["true", None] if older else ["true"])


async def test_credentials_that_do_not_suffice_are_told_by_the_dry_run(provider: AwsProvider, aws: AwsServer) -> None:
    refuse = ec2_error(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
    aws.faults += [Fault("verify"), Fault("verify", before=lambda call: refuse)]
    report = await provider.verify()
    assert report.status == "permission"
    assert "not authorized" in report.message
    assert [call.action for call in aws.calls if call.operation == "verify"] == ["GetCallerIdentity", "RunInstances"]


async def test_credentials_that_could_give_nothing_back_do_not_suffice(provider: AwsProvider, aws: AwsServer) -> None:
    refuse = ec2_error(403, "UnauthorizedOperation", "You are not authorized to perform: ec2:DescribeSecurityGroups")
    aws.faults.append(Fault("DescribeSecurityGroups", before=lambda call: refuse))
    report = await provider.verify()
    assert report.status == "permission"
    assert "ec2:DescribeSecurityGroups" in report.message


async def test_a_dry_run_makes_nothing(provider: AwsProvider, aws: AwsServer) -> None:
    assert (await provider.verify()).status == "ok"
    assert (aws.instances(), aws.groups()) == ([], [])


async def test_an_account_without_a_default_network_names_its_subnets_in_the_form(
    aws_cloud: tuple[AwsServer, str], aws: AwsServer
) -> None:
    subnets = [s for zones in aws.backend("us-east-1").subnets.values() for s in zones.values()]
    subnet = next(s for s in subnets if s.availability_zone == "us-east-1b")
    options = {"endpoints": dict.fromkeys(SERVICES, aws_cloud[1])}
    values = {
        "access_key_id": CREDENTIALS.access_key_id, "secret_access_key": SECRET_KEY, "regions": ["us-east-1"],
        "subnet_ids": [f"us-east-1b={subnet.id}"],
    }  # fmt: skip
    checked = check_fields(backend_of("aws"), values)
    provider = build("aws", ProviderContext("aws-1", OWNER, "/nonexistent", options), checked)
    assert (await provider.verify()).status == "ok"
    made = {call.action: call.form for call in aws.calls if call.form.get("DryRun") == "true"}
    assert made["RunInstances"]["SubnetId"] == subnet.id
    assert made["CreateSecurityGroup"]["VpcId"] == subnet.vpc_id
    assert {offer.zone for offer in await provider.offers(OfferQuery("cpu-general"))} == {"us-east-1b"}
    await provider.close()


def test_credentials_are_the_fields_of_the_form_and_show_no_secret() -> None:
    assert set(AwsCredentials.model_fields) == {"access_key_id", "secret_access_key"}
    assert SECRET_KEY not in repr(CREDENTIALS) + CREDENTIALS.model_dump_json()
    with pytest.raises(ValidationError):
        AwsCredentials(access_key_id="not a key id!", secret_access_key=SecretStr("x"))


@pytest.mark.parametrize("options", [{"regions": ("nowhere",)}, {"page_size": 1}, {"unheard_of": 1}])
def test_options_that_are_none_are_refused(make_aws_provider: MakeProvider, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_aws_provider(**options)


async def test_nothing_comes_from_the_profiles_of_the_workers_machine(
    provider: AwsProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n[broken")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHEROTHEROTHER1")
    assert (await provider.verify()).status == "ok"


def test_the_sdk_is_not_loaded_before_the_first_call() -> None:
    code = """
import sys
from pydantic import SecretStr
from providers.aws.market import batches
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsCredentials
from providers.base import ProviderContext
credentials = AwsCredentials(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key=SecretStr("x"))
AwsProvider(ProviderContext("aws-1", "owner", "/nonexistent"), credentials)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("boto3", "botocore", "urllib3")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
