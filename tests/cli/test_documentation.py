"""Every command and option has help and is in docs/cli.md; the exit codes are the ones that the code has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from commands.exits import ExitCode, of_job
from commands.root import app
from domain.states import Reason

ROOT_DIRECTORY = Path(__file__).parents[2]
DOCUMENT = (ROOT_DIRECTORY / "docs" / "cli.md").read_text()
REASONS = (ROOT_DIRECTORY / "docs" / "reasons.md").read_text()
ROOT = typer.main.get_command(app)


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}")


COMMANDS = dict(walk(ROOT, "headrace"))
LEAVES = {path: command for path, command in COMMANDS.items() if not getattr(command, "commands", None)}


def section(path: str) -> str:
    """The part of the document under the heading of a command."""
    found = re.search(rf"^#+ `{re.escape(path)}`$(.*?)(?=^#+ |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def test_the_commands_are_the_ones_that_are_meant_to_be_there():
    assert set(LEAVES) == {
        f"headrace {name}"
        for name in (
            "up",
            "demo",
            "job submit",
            "job list",
            "job get",
            "job logs",
            "job events",
            "job instances",
            "job terminate",
            "job wait",
            "job rerun",
            "job ssh",
            "org create",
            "org list",
            "org get",
            "org enable",
            "org disable",
            "org set",
            "tenant list",
            "tenant get",
            "tenant set",
            "project create",
            "project list",
            "key create",
            "key list",
            "key revoke",
            "audit list",
            "audit export",
            "budget set",
            "budget list",
            "budget get",
            "budget delete",
            "webhook create",
            "webhook list",
            "webhook set",
            "webhook test",
            "webhook deliveries",
            "webhook resend",
            "webhook delete",
            "secret create",
            "secret list",
            "secret get",
            "secret rotate",
            "secret delete",
            "vault status",
            "vault rotate",
            "vault new-key",
            "accelerators",
            "offers",
            "quote",
            "usage",
            "replay",
            "backend forms",
            "backend connect",
            "backend list",
            "backend get",
            "backend edit",
            "backend verify",
            "backend remove",
            "fleet add",
            "fleet list",
            "fleet edit",
            "fleet probe",
            "fleet remove",
            "orphans",
            "worker",
            "api",
            "db upgrade",
            "db init",
        )
    }


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_says_what_it_does(path, headrace):
    result = headrace(*path.split()[1:], "--help")
    assert result.code == 0
    assert COMMANDS[path].help
    assert "Usage: headrace" in result.out


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_is_documented_with_every_option(path):
    text = section(path)
    assert text, f"docs/cli.md has no heading `{path}`"
    for parameter in LEAVES[path].params:
        if parameter.name == "help" or parameter.param_type_name != "option":
            continue
        assert parameter.help, f"{path} {parameter.opts} has no help"
        for option in parameter.opts:
            assert f"`{option}" in text, f"docs/cli.md: {path} lacks {option}"


@pytest.mark.parametrize("path", LEAVES)
def test_the_document_names_no_option_that_does_not_exist(path):
    named = set(re.findall(r"`(--?[a-z][a-z-]*)", section(path)))
    known = {option for parameter in LEAVES[path].params for option in parameter.opts} | {"--help"}
    assert named <= known


@pytest.mark.parametrize("code", ExitCode)
def test_an_exit_code_is_in_the_help_and_in_the_document(code, headrace):
    assert f"{code.value:>4}  {code.meaning}" in headrace("--help").out
    assert f"| {code.value} | {code.meaning} |" in DOCUMENT


def test_a_misspelt_command_is_a_usage_error(headrace):
    assert headrace("jobs").code == 2
    assert headrace("--version").out.startswith("headrace 0.")


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_documented_with_its_exit_code(reason):
    row = re.search(rf"^\| `{reason.value}` \| ([^|]+) \|.*\| (\d+) \|", REASONS, re.MULTILINE)
    assert row, f"docs/reasons.md lacks {reason.value}"
    for state in row.group(1).strip().split(", "):
        assert of_job({"state": state, "reason": {"code": reason.value}}) == int(row.group(2))


@pytest.mark.parametrize(
    "name", ["README.md", *(str(page.relative_to(ROOT_DIRECTORY)) for page in (ROOT_DIRECTORY / "docs").rglob("*.md"))]
)
def test_links_of_a_document_lead_somewhere(name):
    path = ROOT_DIRECTORY / name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{name} links to {target}, which does not exist"
