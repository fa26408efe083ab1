"""Recorded histories replay with this version's workflows: a change of their order of steps would break live jobs."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from store.temporal import data_converter
from store.vault import Vault
from worker import WORKFLOWS

HISTORIES = Path(__file__).parents[1] / "histories"
RECORDED = sorted(HISTORIES.glob("*.json"))


def _history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


@pytest.fixture
def replayer() -> Replayer:
    vault = Vault.parse((HISTORIES / "key.txt").read_text())
    return Replayer(workflows=WORKFLOWS, data_converter=data_converter(vault))


def test_histories_are_recorded() -> None:
    assert len(RECORDED) >= 8


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path, replayer: Replayer) -> None:
    await replayer.replay_workflow(_history(path))


async def test_a_history_with_a_step_missing_does_not_replay(replayer: Replayer) -> None:
    """The check itself: a replay that cannot fail would prove nothing."""
    document = json.loads((HISTORIES / "succeeded.json").read_text())
    for event in document["events"]:
        attributes = event.get("activityTaskScheduledEventAttributes", {})
        if attributes.get("activityType", {}).get("name") == "provision":
            attributes["activityType"]["name"] = "allocate"

    with pytest.raises(Exception, match=r"(?i)nondeterminism|does not match"):
        await replayer.replay_workflow(WorkflowHistory.from_json("changed", json.dumps(document)))
