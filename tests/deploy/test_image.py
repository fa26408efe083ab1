"""The Dockerfile: two stages, an unprivileged user, and everything that an installed Headrace needs."""

import re
import tomllib

from tests.deploy.compose import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STAGES = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]


def test_every_stage_starts_from_a_pinned_image() -> None:
    assert len(STAGES) == 2
    for stage in STAGES:
        assert re.match(r"python:3\.11\.\d+-slim-bookworm\b", stage)


def test_the_build_takes_the_constraints() -> None:
    assert "--constraint constraints.txt" in STAGES[0]


def test_the_final_stage_installs_nothing_and_copies_no_sources() -> None:
    final = STAGES[1]
    assert not re.search(r"\b(pip|apt-get|gcc|make)\b", final)
    assert re.findall(r"(?m)^COPY .*", final) == ["COPY --from=build /opt/headrace /opt/headrace"]


def test_it_runs_as_an_unprivileged_user_and_says_whether_it_is_healthy() -> None:
    final = STAGES[1]
    assert re.search(r"(?m)^USER headrace$", final)
    assert re.search(r"(?m)^HEALTHCHECK ", final)
    assert "/healthz" in final


def test_the_build_context_holds_every_package_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {pattern.rstrip("*") for pattern in project["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in project["py-modules"]}
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == packages | modules | {
        "constraints.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    }
