"""docs/settings.md says of every setting what `settings.Settings` says of it."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from settings import Settings

DOCUMENT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def default_of(field: FieldInfo) -> str:
    """As a reader would write it into the environment; none for a setting that is off by default."""
    value: Any = field.default
    if value is None:
        return "none"
    if isinstance(value, Path):
        return f"`{value.as_posix().replace(Path.home().as_posix(), '~')}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def row(name: str, field: FieldInfo) -> str:
    return f"| `HEADRACE_{name.upper()}` | {default_of(field)} | {field.description} |"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_is_documented_as_it_is(name: str) -> None:
    field = Settings.model_fields[name]
    assert field.description, f"{name} has no description"
    assert row(name, field) in DOCUMENT.splitlines(), f"docs/settings.md lacks the line: {row(name, field)}"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    named = re.findall(r"^\| `HEADRACE_(\w+)`", DOCUMENT, re.MULTILINE)
    assert sorted(named) == sorted(name.upper() for name in Settings.model_fields)
