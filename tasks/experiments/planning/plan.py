"""The plan of a test: the settings at its start."""

from infra.records import ExperimentRecord, Plan
from infra.records.experiments import RULES
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import METRICS, planned
from tasks.labels.users import KNOWN_DAYS

OF_COLLECT = ("settle_seconds", "join_seconds")
"""Settings of `collect` that decide what a test counts."""
OWN = ("rules", "planned", "cautious", "metrics", "known_user_days")
"""Fields of a plan that are not settings."""


UNPLANNED = {"design": "by_user", "planned_requests": 20_000, "max_seconds": 7 * 86_400.0}
"""Values for settings that leave the choice to the planner (planner.py) when it has no traffic to plan from."""


def make_plan(settings: Experiment, collect: Collect, reason: str = "") -> Plan:
    """Return the plan of a test that opens now.

    Args:
        reason: what the planner chose and why.
    """
    return Plan(metrics=tuple(planned(metric, settings) for metric in METRICS), planned=reason, **_fields(settings, collect))


def plan_of(experiment: ExperimentRecord) -> Plan:
    """Return the plan by which a test is judged. Raises ValueError for a record without one, such as that of a move by hand."""
    if experiment.plan is None:
        raise ValueError(f"experiment {experiment.id}: expected a plan, found none: it is no A/B test")
    return experiment.plan


def _fields(settings: Experiment, collect: Collect) -> dict[str, object]:
    settings = unplanned(settings)
    names = [name for name in Plan.model_fields if name not in (*OWN, *OF_COLLECT)]
    of_collect = {name: getattr(collect, name) for name in OF_COLLECT}
    return {"rules": RULES, "known_user_days": KNOWN_DAYS} | {name: getattr(settings, name) for name in names} | of_collect


def unplanned(settings: Experiment) -> Experiment:
    """Return the settings with UNPLANNED in place of open ones."""
    return settings.model_copy(
        update={name: value for name, value in UNPLANNED.items() if getattr(settings, name) in (0, "auto")}
    )
