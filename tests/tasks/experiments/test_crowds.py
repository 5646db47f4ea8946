"""Users of one credential who count as one, where each developer has a token: they break no test of the others."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from infra.assignment import assigned_arm
from infra.records import ExperimentRecord, Plan, Stage
from infra.records.experiments import Design
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.totals import QUARTERS, ArmTotals, of_evidence, total
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.checks import run_checks
from tests.tasks.experiments.test_totals import labelled
from tests.tasks.made import NOW, completion, feedback

ALONE, CROWDS, EACH, BLOCKS = 20, 2, 5, 40
BLOCK = 3_600.0
BEGIN = NOW - NOW % BLOCK
WHO = [(f"u{n}", f"c{n}") for n in range(ALONE)]
WHO += [(f"m{crowd}-{n}", f"shared{crowd}") for crowd in range(CROWDS) for n in range(EACH)]


def totals_of(design: Design, share: float, **fields: Any) -> tuple[ArmTotals, Plan, float]:
    """Return the totals of a test of equal versions in which each user makes a request in each block of time."""
    settings = Experiment(design=design, min_history_requests=0, max_credential_weight=0.2, block_seconds=BLOCK)
    plan = make_plan(settings, Collect())
    stage = Stage(name="test", share=share, started=BEGIN)
    test = ExperimentRecord(
        **{"id": "e", "champion": "1", "challenger": "2", "share": share, "started": BEGIN, "plan": plan, "stages": (stage,)}
    )
    served, events = [], []
    for block in range(BLOCKS):
        for number, (user, credential) in enumerate(WHO):
            time, name = BEGIN + block * BLOCK + number, f"{user}/{block}"
            arm = assigned_arm(test, user, time)
            own = {"user": user, "credential": credential, "prefix": name, "arm": arm, "experiment": "e"}
            served.append(completion(name, time=time, policy_version="2" if arm == "challenger" else "1", **own, **fields))
            events.append(feedback(name, user=user, prefix=name, time=time + 1))
    return total(labelled(served, events), test, plan, BEGIN + BLOCKS * BLOCK), plan, share


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("design", ["by_user", "crossover"])
def test_credentials_of_several_users_break_no_test_of_a_small_team(design: Design, share: float) -> None:
    totals, plan, _ = totals_of(design, share)
    assert totals.crowds.sum() == CROWDS and len(totals.crowds) == ALONE + CROWDS
    checks = run_checks(totals, share, plan)
    assert {check.name: check.state for check in checks} == dict.fromkeys((check.name for check in checks), "passed"), checks
    assert run_checks(of_evidence(totals.evidence()), share, plan) == checks


def test_users_of_one_credential_have_the_turns_of_their_mean() -> None:
    totals, _, _ = totals_of("crossover", 0.2)
    turns = np.sum([sums[name] for sums in totals.during.values() for name in QUARTERS], axis=0)
    assert turns.tolist() == pytest.approx([BLOCKS] * (ALONE + CROWDS))


def test_a_user_served_by_both_arms_still_breaks_a_test_by_user() -> None:
    served = []
    for number in range(ALONE):
        for at, arm in enumerate(("champion", "challenger") if number < 6 else ("champion",)):
            own = {"user": f"u{number}", "credential": f"c{number}", "prefix": f"{number}/{arm}"}
            served.append(completion(f"{number}/{arm}", time=BEGIN + at, arm=arm, experiment="e", **own))
    settings = Experiment(design="by_user", min_history_requests=0, max_credential_weight=0.2)
    plan = make_plan(settings, Collect())
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=BEGIN)
    rows: pl.DataFrame = labelled(served, [])
    found = run_checks(total(rows, test, plan, BEGIN + 60), 0.5, plan)
    assert next(check for check in found if check.name == "both_arms").state == "broken"
