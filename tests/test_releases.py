"""The life of a version on real servers: shadow, ramp, test, promotion, watch; rejection; rollback by a guardrail.

Before each look of the watch that counts, another one is killed by SIGKILL at a random moment.
"""

from pathlib import Path

import pytest

from infra import moves as log
from infra.cycles import decision_of
from infra.records import ExperimentRecord
from tests.releases import Answers, World, world
from tests.stack import Stack

pytestmark = pytest.mark.stack


def kinds(made: World) -> list[str]:
    return [move.kind for move in log.backwards(made.store)][::-1]


def nobody_saw_two_arms(made: World, experiment: ExperimentRecord) -> None:
    """Check that a user met one arm in each stage, and none came back from the challenger, until the watch began."""
    decision = decision_of(made.store, experiment.id)
    assert decision
    begins = decision.watch.started if decision.watch else float("inf")
    met: dict[tuple[str, float], set[str]] = {}
    for row in made.completions():
        if row.experiment == experiment.id and row.time < begins:
            met.setdefault((row.user, decision.experiment.stage_at(row.time).started), set()).add(row.policy_version)
    assert met and all(len(versions) == 1 for versions in met.values())
    for user in {user for user, _ in met}:
        order = [versions for (who, _), versions in sorted(met.items()) if who == user]
        assert order == sorted(order, key=lambda versions: experiment.challenger in versions), "from the champion, never back"


@pytest.mark.timeout(300)
async def test_a_better_version_is_promoted_through_its_stages_and_taken_back_when_it_turns_bad(
    storage: Stack, tmp_path: Path
) -> None:
    async with world(tmp_path / "better") as made:
        version = made.add(Answers(0.8, text="value + 2"))
        made.open(version, "1")
        await made.serves(version)
        _, said = await made.until("Promoted")
        print("PROMOTED", said, made.said, made.kills)
        assert kinds(made) == ["begin", "open", "advance", "advance", "promote"]
