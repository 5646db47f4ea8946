"""A cap of credentials in a small team: where too few of them are on an arm, a ramp still passes and a breach is still seen."""

from dataclasses import replace

import numpy as np
import pytest

from infra.assignment import assigned_arm
from infra.records import ExperimentRecord, Plan, Stage
from infra.records.experiments import Design
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.totals import MADE, ArmTotals, of_evidence, total
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.stages import ramp
from tasks.experiments.verdict.decide import decide
from tests.tasks.experiments.test_totals import labelled
from tests.tasks.made import NOW, completion, feedback

BLOCK, BLOCKS, SHARE = 3_600.0, 8, 0.1
BEGIN = NOW - NOW % BLOCK
END = BEGIN + BLOCKS * BLOCK
SETTINGS = Experiment(min_history_requests=0, max_credential_weight=0.2, block_seconds=BLOCK, max_seconds=80 * BLOCK)


def ramp_of(design: Design, plan: Plan) -> ExperimentRecord:
    """Return a test in its ramp in which two of the 20 users are on the challenger's arm at first."""
    stage = Stage(name="ramp", share=SHARE, started=BEGIN)
    for number in range(1000):
        values = {"id": f"e{number}", "champion": "1", "challenger": "2", "share": 0.5, "started": BEGIN}
        test = ExperimentRecord(**values, plan=plan.model_copy(update={"design": design}), stages=(stage,))
        if [assigned_arm(test, f"u{user}", BEGIN) for user in range(20)].count("challenger") == 2:
            return test
    raise AssertionError("no such test")


def totals_of(test: ExperimentRecord, blocks: int, **of_challenger: object) -> ArmTotals:
    """Return the totals of 20 users with a token each, and of two credentials of five users, after some blocks of time."""
    who = [(f"u{n}", f"c{n}") for n in range(20)] + [(f"m{n}", f"shared{n % 2}") for n in range(10)]
    served, events = [], []
    for number, at in enumerate(np.arange(0, blocks * BLOCK, BLOCK / 5)):
        for user, credential in who:
            name, time = f"{user}/{number}", BEGIN + float(at)
            arm = assigned_arm(test, user, time)
            fields = {"policy_version": "2", **of_challenger} if arm == "challenger" else {}
            own = {"user": user, "credential": credential, "prefix": name, "arm": arm, "experiment": test.id}
            served.append(completion(name, time=time, **own, **fields))
            events.append(feedback(name, user=user, prefix=name, time=time + 1))
    assert test.plan
    return total(labelled(served, events), test, test.plan, BEGIN + blocks * BLOCK)


@pytest.mark.parametrize("design", ["by_user", "crossover"])
def test_a_ramp_with_fewer_credentials_than_the_cap_asks_for_passes(design: Design) -> None:
    test = ramp_of(design, make_plan(SETTINGS, Collect()))
    assert test.plan
    totals = totals_of(test, BLOCKS)
    verdict, passed = ramp.verdict_of(test, test.plan, totals, END)
    assert passed, verdict.reason
    assert verdict.requests["challenger"] >= test.plan.ramp_requests
    assert verdict.requests["challenger"] + verdict.requests["champion"] == 30 * BLOCKS * 5
    assert ramp.verdict_of(test, test.plan, of_evidence(totals.evidence()), END) == (verdict, passed)


def test_one_busy_user_ends_no_ramp() -> None:
    test = ramp_of("crossover", make_plan(SETTINGS, Collect()))
    assert test.plan
    totals = totals_of(test, 2)
    made = totals.during["challenger"][MADE].copy()
    made[made.argmax()] = 1000.0
    busy = replace(totals, during={**totals.during, "challenger": {**totals.during["challenger"], MADE: made}})
    plan = test.plan.model_copy(update={"ramp_requests": 200})
    verdict, passed = ramp.verdict_of(test, plan, busy, END)
    assert not passed and verdict.requests["challenger"] > 1000
    assert "requests on the challenger, 200 are asked and 70 count (experiment.max_user_weight)" in verdict.reason
    assert ramp.verdict_of(test, plan.model_copy(update={"ramp_requests": 70}), busy, END)[1]


@pytest.mark.parametrize(
    ("design", "fault"),
    [
        ("by_user", {"finish_reason": "error"}),  # of two users, times are never sure
        ("crossover", {"finish_reason": "error"}),
        ("crossover", {"ttft_ms": 900.0, "total_ms": 1900.0}),
    ],
)
def test_a_breach_is_seen_with_fewer_credentials_than_the_cap_asks_for(design: Design, fault: dict[str, object]) -> None:
    test = ramp_of(design, make_plan(SETTINGS, Collect()))
    assert test.plan
    verdict, passed = ramp.verdict_of(test, test.plan, totals_of(test, BLOCKS, **fault), END)
    assert (verdict.verdict, passed) == ("breach", False), verdict.reason


def test_a_test_in_which_no_request_counts_names_the_cap() -> None:
    test = ramp_of("by_user", make_plan(SETTINGS, Collect()))
    assert test.plan
    reason = "no request of the challenger's arm counts: 5 credentials are asked (experiment.max_credential_weight)"
    assert decide(test, test.plan, totals_of(test, 2), END - 1).reason == reason
