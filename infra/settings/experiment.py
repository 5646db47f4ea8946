"""Settings of the A/B test. A test is judged by the settings as they were when it opened (tasks/experiments/planning/plan.py)."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.records.gate_settings import GateSettings
from infra.settings.section import Section

METRICS = (
    *("accepted", "characters", "annoyed", "shown", "cancelled", "quick", "empty", "failed", "requests_per_user"),
    *("ttft_p50", "ttft_p95", "total_p50", "total_p95", "length"),
)
"""Names of the metrics of a test (tasks/experiments/counting/metrics.py)."""


class Experiment(GateSettings, Section):
    mode: Literal["superiority", "non_inferiority"] = "superiority"
    """When a challenger is promoted. superiority: accepts, accepted characters or fewer annoyances per request are surely better,
    and no metric is worse than its margin. non_inferiority: no metric is worse than its margin, for a fast cadence of small
    steps. Each step may lose a part of a margin; what many steps lose together shows beside the anchor (`anchor_share`)."""
    design: Literal["auto", "by_user", "crossover"] = "auto"
    """Who meets which version. by_user: a user meets one. crossover: a user meets both, in turns of `block_seconds`, and is
    compared with themselves: for teams below a few hundred. auto: what finds the smaller gain in the traffic of the last week, by
    user where both find nearly as much (`tabloop plan`)."""
    gain: float = Field(0.1, gt=0)
    """Gain of acceptance, as a share, that a test is long enough to find in four of five cases, if 28 days allow it. Only
    where `max_seconds` is 0, in the mode superiority."""
    whole: Literal["days", "weeks"] = "days"
    """A test whose length is chosen lasts whole days, or whole weeks."""
    margins: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    """Losses of single metrics that are tolerated for a gain in another one, in place of their own (METRICS in
    tasks/experiments/counting/metrics.py): {accepted = 0.1} is a tenth of the champion's. A challenger must surely lose less. A
    margin below three standard errors of its metric at the planned size costs promotions of better models. That of `accepted` is
    also what a version may lose at most to be trained further."""
    share: float = Field(0.5, gt=0, lt=1)
    """Share of users on the challenger's arm; of a crossover, of their blocks of time."""

    @field_validator("margins")
    @classmethod
    def _of_metrics(cls, given: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(given.keys() - set(METRICS)):
            raise ValueError(f"{unknown[0]!r}: expected one of {', '.join(METRICS)}")
        return given

    @model_validator(mode="after")
    def _a_planned_end_has_a_verdict(self) -> Self:
        if 0 < self.planned_requests < self.min_requests:
            raise ValueError(
                f"planned_requests = {self.planned_requests}: expected 0, or at least min_requests = {self.min_requests}: a test "
                "has no verdict before it, so none at its planned end; raise planned_requests, or lower min_requests"
            )
        return self
