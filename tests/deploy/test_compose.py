"""docker-compose.yml: valid, complete, pinned, closed, and without a password of its own."""

import json
import re
from typing import Any

import pytest
from compose_spec import PyCompose

from settings import Settings
from tests.deploy import compose

OWN_IMAGE = "headrace:0.1.0"


def own_services(stack: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in stack["services"].items() if service["image"] == OWN_IMAGE}


class TestForm:
    def test_it_follows_the_compose_specification(self, stack: dict[str, Any]) -> None:
        PyCompose.from_json(json.dumps(stack)).validate()

    def test_a_misspelt_key_would_be_noticed(self, environment: dict[str, str]) -> None:
        stack = compose.load(environment)
        stack["services"]["api"]["helthcheck"] = {}
        with pytest.raises(ValueError, match="helthcheck"):
            PyCompose.from_json(json.dumps(stack))

    def test_every_image_is_pinned_to_a_version(self, stack: dict[str, Any]) -> None:
        for name, service in stack["services"].items():
            tag = service["image"].rpartition(":")[2]
            assert re.fullmatch(r"\d+\.\d+[\w.-]*", tag), name

    def test_every_file_and_volume_that_is_mounted_is_there(self, stack: dict[str, Any]) -> None:
        for name, service in stack["services"].items():
            for mount in service.get("volumes", []):
                source = mount.split(":")[0]
                if source.startswith("./"):
                    assert (compose.ROOT / source).is_file(), (name, source)
                    assert mount.endswith(":ro"), (name, mount)
                else:
                    assert source in stack["volumes"], (name, source)


class TestOrder:
    def test_every_dependency_proves_its_state_or_completes(self, stack: dict[str, Any]) -> None:
        for name, service in stack["services"].items():
            for needed, how in service.get("depends_on", {}).items():
                dependency = stack["services"][needed]
                if how["condition"] == "service_healthy":
                    assert "test" in dependency["healthcheck"], (name, needed)
                else:
                    assert how["condition"] == "service_completed_successfully", (name, needed)
                    # A one-shot job is tried again when it fails, and never once it is done.
                    assert dependency["restart"] == "on-failure", (name, needed)

    def test_api_and_worker_start_after_schema_namespace_and_bucket(self, stack: dict[str, Any]) -> None:
        for name in ("api", "worker"):
            assert set(stack["services"][name]["depends_on"]) == {
                "migrate",
                "temporal-namespace",
                "object-store-bucket",
            }


class TestClosed:
    def test_only_api_and_ui_are_published_and_only_where_the_env_says(
        self, stack: dict[str, Any], environment: dict[str, str]
    ) -> None:
        published = {name: service["ports"] for name, service in stack["services"].items() if "ports" in service}
        assert published == {
            "api": [f"{environment['API_BIND']}:8080"],
            "temporal-ui": [f"{environment['TEMPORAL_UI_BIND']}:8080"],
        }
        assert environment["TEMPORAL_UI_BIND"].startswith("127.0.0.1:")

    def test_stores_and_temporal_are_on_a_network_without_a_way_out(self, stack: dict[str, Any]) -> None:
        assert stack["networks"]["data"] == {"internal": True}
        for name in ("postgres", "temporal", "object-store", "temporal-schema", "temporal-namespace", "migrate"):
            assert stack["services"][name]["networks"] == ["data"], name

    def test_own_containers_have_no_capability_and_a_read_only_root(self, stack: dict[str, Any]) -> None:
        assert set(own_services(stack)) == {"migrate", "api", "worker"}
        for name, service in own_services(stack).items():
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True, name
            assert "no-new-privileges:true" in service["security_opt"], name


class TestVariables:
    def test_every_variable_is_required_so_that_nothing_has_a_default_password(self) -> None:
        for match in compose.VARIABLE.finditer(compose.text()):
            assert re.fullmatch(r":\?.+", match["rule"]), match[0]

    def test_the_example_documents_exactly_the_variables_that_are_used(self) -> None:
        used = {match["name"] for match in compose.VARIABLE.finditer(compose.text())}
        assert set(compose.read_env(compose.ROOT / ".env.example")) == used

    def test_no_secret_stands_in_a_command_or_a_health_check(
        self, stack: dict[str, Any], environment: dict[str, str]
    ) -> None:
        example = compose.read_env(compose.ROOT / ".env.example")
        secrets = [environment[name] for name, value in example.items() if not value]
        assert len(secrets) >= 6
        for name, service in stack["services"].items():
            argv = json.dumps([service.get(key) for key in ("command", "entrypoint", "healthcheck")])
            assert not [secret for secret in secrets if secret in argv], name

    def test_every_headrace_variable_is_a_setting(self, stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        known = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields}
        for name, service in own_services(stack).items():
            given = {key: value for key, value in service["environment"].items() if key.startswith("HEADRACE_")}
            assert set(given) <= known, name
            with monkeypatch.context() as patch:
                for key, value in given.items():
                    patch.setenv(key, value)
                assert Settings().temporal_namespace == "headrace"

    def test_ui_and_api_agree_on_namespace_and_origin(self, stack: dict[str, Any]) -> None:
        ui, api, job = (stack["services"][name]["environment"] for name in ("temporal-ui", "api", "temporal-namespace"))
        assert ui["TEMPORAL_DEFAULT_NAMESPACE"] == api["HEADRACE_TEMPORAL_NAMESPACE"] == job["TEMPORAL_NAMESPACE"]
        assert ui["TEMPORAL_CORS_ORIGINS"] == api["HEADRACE_TEMPORAL_UI_URL"]
        assert ui["TEMPORAL_CODEC_INCLUDE_CREDENTIALS"] == "true"
