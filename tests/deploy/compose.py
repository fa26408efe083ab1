"""The compose file as an operator's `docker compose` would see it."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)(?P<rule>[^}]*)\}")


def text() -> str:
    return (ROOT / "docker-compose.yml").read_text()


def load(environment: dict[str, str]) -> dict[str, Any]:
    """The file with its variables filled in from `environment` and its YAML merges applied."""
    filled = VARIABLE.sub(lambda match: environment[match["name"]], text())
    document: dict[str, Any] = yaml.safe_load(filled)
    return document


def read_env(path: Path) -> dict[str, str]:
    """NAME=value lines, comments left out."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)
