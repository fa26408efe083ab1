"""What an API key may do, and that it goes nowhere."""

import os
import subprocess
import sys

import pytest
from pydantic import SecretStr, ValidationError

from providers.fake.control import CloudControl
from providers.fake.faults import Answer
from providers.runpod.credentials import RunPodCredentials
from providers.runpod.provider import RunPodProvider
from tests.providers.runpod_fake.server import RunningRunPod
from tests.providers.runpod_support import make_runpod


class TestCredentials:
    async def test_a_wrong_key_is_reported(self, runpod: RunningRunPod) -> None:
        provider = make_runpod(runpod, key="rpa_wrong_key_canary")
        report = await provider.verify()
        assert report.status == "auth"
        assert "rpa_wrong_key_canary" not in report.message
        await provider.close()

    async def test_a_key_without_rights_on_pods_is_reported(
        self, provider: RunPodProvider, control: CloudControl
    ) -> None:
        await control.fault("list", Answer.PERMISSION)
        assert (await provider.verify()).status == "permission"

    async def test_the_check_leaves_the_environment_as_it_was(self, provider: RunPodProvider) -> None:
        before = dict(os.environ)
        assert (await provider.verify()).status == "ok"
        assert dict(os.environ) == before

    def test_the_sdk_adds_no_handler_to_our_logs(self) -> None:
        code = (
            "import logging, sys\n"
            "from domain.errors import Ambiguous\n"
            "from providers.runpod.account import account_id\n"
            "try:\n    account_id('key', 'http://127.0.0.1:9/graphql')\n"
            "except Ambiguous:\n    sys.exit(bool(logging.getLogger().handlers) or 'runpod' not in sys.modules)\n"
            "sys.exit(2)\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0

    def test_a_key_is_never_shown_and_never_empty(self) -> None:
        credentials = RunPodCredentials(api_key=SecretStr("rpa_secret_canary"))
        assert "rpa_secret_canary" not in repr(credentials) + credentials.model_dump_json()
        assert not credentials.include_community
        with pytest.raises(ValidationError):
            RunPodCredentials(api_key=SecretStr(""))

    def test_the_sdk_is_not_loaded_before_it_is_needed(self) -> None:
        code = (
            "import sys; from pydantic import SecretStr; from providers.base import ProviderContext;"
            "from providers.runpod.credentials import RunPodCredentials;"
            "from providers.runpod.provider import RunPodProvider;"
            "RunPodProvider(ProviderContext('c', 'o', '/tmp'), RunPodCredentials(api_key=SecretStr('k')));"
            "sys.exit('runpod' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
