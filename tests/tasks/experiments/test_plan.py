"""The plan of a test freezes the settings, and a plan of an earlier version is read."""

import json

import pytest
from pydantic import ValidationError

from infra.records import Plan
from infra.records.gate_settings import GateSettings
from infra.settings import experiment
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import METRICS
from tasks.experiments.planning.plan import make_plan

OLD_PLAN = """{"rules": 3, "planned": "crossover, 2 days", "mode": "non_inferiority", "cautious": true, "design":
"crossover", "metrics": [{"name": "accepted", "role": "success", "better": "more", "per": "shown", "margin":
0.1, "relative": true, "weight": 0.9, "immediate": false}], "alpha": 0.1, "min_requests": 60,
"planned_requests": 240, "min_users": 8, "max_seconds": 200.0, "baseline_seconds": 0.0, "block_seconds": 60.0,
"max_characters": 20, "max_user_weight": 2.0, "max_credential_weight": 0.2, "min_history_requests": 3,
"tolerated_users": 1, "srm_alpha": 0.01, "breach_alpha": 0.02, "max_both_arms": 0.1, "max_label_gap": 0.2,
"max_request_gap": 0.3, "shadow_requests": 12, "shadow_share": 1.0, "shadow_failures": 0.5, "shadow_slowdown":
4.0, "shadow_similarity": 0.3, "ramp": [0.25], "ramp_requests": 20, "inconclusive": "pause", "watch_seconds":
150.0, "holdout_share": 0.3, "anchor_share": 0.4, "anchor_seconds": 30.0, "anchor_days": 7, "anchor_alpha":
0.4, "settle_seconds": 5.0, "join_seconds": 60.0, "known_user_days": 30.0}"""
"""A plan of commit be31909, which copied every setting; none has its default."""
LATER = {"sample": 1.0}
"""Fields that came later, as that version judged."""


def test_a_plan_of_an_earlier_version_keeps_its_values() -> None:
    values = json.loads(OLD_PLAN)
    plan = Plan.model_validate_json(OLD_PLAN)
    assert plan.model_dump(mode="json") == values | LATER
    assert {*values, *LATER} == set(Plan.model_fields), "the fields keep their names"
    assert all(values[name] != field.default for name, field in Plan.model_fields.items() if name not in ("rules", *LATER))


def test_a_stage_or_check_that_is_off_in_a_stored_plan_stays_off() -> None:
    names = ("shadow_share", "holdout_share", "anchor_days", "breach_alpha")
    values = json.loads(OLD_PLAN)
    zeros = Plan.model_validate(values | dict.fromkeys(names, 0))
    missing = Plan.model_validate({name: value for name, value in values.items() if name not in names})
    for plan in (zeros, missing, Plan.model_validate_json(zeros.model_dump_json())):
        assert [getattr(plan, name) for name in names] == [0, 0, 0, 0]


def test_a_new_plan_freezes_the_settings() -> None:
    changed = {name: json.loads(OLD_PLAN)[name] for name in GateSettings.model_fields}
    settings = Experiment.model_validate({**changed, "design": "crossover"})
    plan = make_plan(settings, Collect(settle_seconds=5, join_seconds=60))
    assert {name: getattr(plan, name) for name in changed} == {name: getattr(settings, name) for name in changed}
    assert (plan.design, plan.settle_seconds, plan.join_seconds) == ("crossover", 5, 60)
    assert (plan.srm_alpha, plan.breach_alpha, plan.known_user_days) == (0.001, 0.01, 90)


def test_a_margin_of_the_settings_replaces_that_of_the_metric() -> None:
    plan = make_plan(Experiment.model_validate({"margins": {"quick": 0.5}}), Collect())
    margins = {metric.name: metric.margin for metric in plan.metrics}
    assert margins == {metric.name: metric.margin for metric in METRICS} | {"quick": 0.5}
    assert tuple(margins) == experiment.METRICS, "the settings name every metric"
    for wrong in ({"quik": 0.5}, {"quick": -0.5}):
        with pytest.raises(ValidationError):
            Experiment.model_validate({"margins": wrong})


def test_a_test_that_nothing_plans_is_long_enough_for_its_verdict() -> None:
    for least, planned in ((500, 20_000), (30_000, 30_000)):
        plan = make_plan(Experiment(min_requests=least), Collect())
        assert (plan.min_requests, plan.planned_requests) == (least, planned)
    with pytest.raises(ValidationError, match="planned_requests = 499: expected 0, or at least min_requests = 500"):
        Experiment(planned_requests=499)
    assert Experiment(planned_requests=500).planned_requests == 500
