"""What takes a version on probation back: a sure loss, and no answers that are lost."""

import pytest

from infra.records import ExperimentRecord, Stage, Verdict
from infra.settings.schema import Collect, Experiment
from tasks.experiments.controller import probation
from tasks.experiments.planning.plan import make_plan
from tests.tasks.experiments.arms import arm_totals, user
from tests.tasks.made import NOW

PLAN = make_plan(Experiment(min_users=10, min_requests=200, tolerated_users=0), Collect())
STAGE = Stage(name="watch", share=0.8, started=NOW, ends=NOW + 3600)
WATCHED = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=PLAN, stages=(STAGE,))


def verdict_of(accepted: int, answers: int, share: float = 0.8) -> Verdict:
    """Return the verdict on 80 users of the new champion beside 20 of the one before, who accept half of 100."""
    before = {f"a{n}": user(100, 50 + n % 3) for n in range(20)}
    of_new = {"judged": answers, "decided": answers, "annoyed": answers - accepted, "length": 20 * answers}
    new = {f"b{n}": user(100, accepted + n % 3) | of_new for n in range(80)}
    watched = WATCHED.model_copy(update={"stages": (STAGE.model_copy(update={"share": share}),)})
    return probation.verdict_of(watched, PLAN, arm_totals(before, new))


def test_a_sure_loss_takes_a_version_back() -> None:
    found = verdict_of(20, 100)
    assert found.verdict == "reject" and "acceptance per request" in found.reason, found.reason
    assert {check.state for check in found.checks} == {"passed"}


@pytest.mark.parametrize(("answers", "share", "why"), [(60, 0.8, "judged per shown"), (100, 0.3, "sample-ratio mismatch")])
def test_a_loss_in_arms_that_cannot_be_compared_takes_no_version_back(answers: int, share: float, why: str) -> None:
    found = verdict_of(20, answers, share)
    assert found.verdict == "undecided" and why in found.reason, found.reason


def test_without_a_control_group_nothing_is_compared() -> None:
    new = arm_totals({"a": user(0)}, {f"b{n}": user(100, 20) for n in range(80)})
    everyone = WATCHED.model_copy(update={"stages": (STAGE.model_copy(update={"share": 1.0}),)})
    assert "80 and 0 users" in probation.verdict_of(everyone, PLAN, new).reason
