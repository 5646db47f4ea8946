"""The plan of a test: the settings at its start."""

from typing import Any

from infra.records import ExperimentRecord, Plan
from infra.records.experiments import RULES
from infra.records.gate_settings import GateSettings
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import METRICS, planned
from tasks.labels.users import KNOWN_DAYS

UNPLANNED: dict[str, Any] = {"design": "by_user", "planned_requests": 20_000, "max_seconds": 7 * 86_400.0}
"""Values for settings that leave the choice to the planner (planner.py) when it has no traffic to plan from."""

DAY = 86_400.0
NEW: dict[str, Any] = {
    **{"rules": RULES, "breach_alpha": 0.01, "known_user_days": KNOWN_DAYS, "baseline_seconds": DAY},
    **{"shadow_share": 0.2, "ramp_requests": 50, "holdout_share": 0.1, "anchor_seconds": DAY, "anchor_days": 28},
}
"""Values of a new plan that no team sets."""


def make_plan(settings: Experiment, collect: Collect, reason: str = "", sample: float = 1.0) -> Plan:
    """Return the plan of a test that opens now; `reason`: what the planner chose and why; `sample`: share of the users."""
    settings = unplanned(settings)
    chosen = {"planned": reason, "mode": settings.mode, "design": settings.design, "sample": sample}
    times = {"settle_seconds": collect.settle_seconds, "join_seconds": collect.join_seconds}
    metrics = tuple(planned(metric, settings) for metric in METRICS)
    frozen = {name: getattr(settings, name) for name in GateSettings.model_fields}
    return Plan.model_validate({**NEW, **frozen, **chosen, **times, "metrics": metrics})


def plan_of(experiment: ExperimentRecord) -> Plan:
    """Return the plan by which a test is judged. Raises ValueError for a record without one, such as that of a move by hand."""
    if experiment.plan is None:
        raise ValueError(f"experiment {experiment.id}: expected a plan, found none: it is no A/B test")
    return experiment.plan


def unplanned(settings: Experiment) -> Experiment:
    """Return the settings with UNPLANNED in place of open ones; a test is long enough for its verdict (min_requests)."""
    chosen = {name: value for name, value in UNPLANNED.items() if getattr(settings, name) in (0, "auto")}
    if not settings.planned_requests:
        chosen["planned_requests"] = max(UNPLANNED["planned_requests"], settings.min_requests)
    return settings.model_copy(update=chosen)
