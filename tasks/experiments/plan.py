"""The plan of a test: the settings as they are when it opens."""

from infra.records import ExperimentRecord, Plan, PlannedMetric
from infra.settings.schema import Collect, Experiment
from tasks.experiments.metrics import METRICS, planned

OF_COLLECT = ("settle_seconds", "join_seconds", "known_user_days")
"""Settings of `collect` that decide what a test counts."""


def make_plan(settings: Experiment, collect: Collect) -> Plan:
    """Return the plan of a test that opens now.

    A crossover has no metric per user: how a user's requests divide over the arms is up to the blocks, which a check compares.
    """
    metrics = [planned(metric, settings) for metric in METRICS if settings.design == "by_user" or metric.per != "user"]
    return Plan(metrics=tuple(metrics), **_fields(settings, collect))


def plan_of(experiment: ExperimentRecord, settings: Experiment, collect: Collect) -> Plan:
    """Return the plan by which a test is judged: its record's.

    A test that was opened before plans were recorded goes on by the rule of that time (rules.acceptance), with today's settings.
    """
    if experiment.plan:
        return experiment.plan
    compared = [
        PlannedMetric(name=name, role=role, better="more", per="requests", margin=0, relative=False)
        for name, role in (("accepted", "success"), ("characters", "guardrail"))
    ]
    return Plan(metrics=tuple(compared), **{**_fields(settings, collect), "mode": "acceptance", "design": "by_user"})


def _fields(settings: Experiment, collect: Collect) -> dict[str, object]:
    names = [name for name in Plan.model_fields if name not in ("metrics", *OF_COLLECT)]
    return {name: getattr(settings, name) for name in names} | {name: getattr(collect, name) for name in OF_COLLECT}
