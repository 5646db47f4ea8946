"""Experiments: an A/B test with its plan, its statistics and the release decision that ends it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from infra.records.base import Arm, ObjectReference, Record
from infra.records.gate_settings import GateSettings

VerdictName = Literal["promote", "reject", "breach", "broken", "undecided"]
"""breach: a guardrail of operation surely broke, at once. broken: the test went wrong, or could not show anything, which says
nothing about the challenger."""
Mode = Literal["superiority", "non_inferiority"]
Design = Literal["by_user", "crossover"]
Denominator = Literal["requests", "shown", "labelled", "judged", "decided", "user"]
"""requests: all. shown: all, what was shown and not judged as what was judged. judged: what became of it is known. decided: the
developer decided. user: a number of each user's own. labelled: judged, or without anything to judge; only in earlier plans."""
RULES = 12
"""Number of the gate's rules as this code has them; it grows when the same plan and totals give another verdict, or
another reason."""

StageName = Literal["shadow", "ramp", "test", "paused", "watch", "anchor"]
"""shadow: the challenger answers copies of requests that nobody sees. ramp: it serves a part of the planned share. test: it
serves the planned share, and the verdict is computed from this stage alone. paused: a person decides, because the test ended
without proof either way or because they paused it. watch: it was promoted, and the champion before it still serves the rest, the
holdout. anchor: it is champion, and the anchor, which it is compared with, serves the rest."""


class PlannedMetric(Record):
    """A metric by which a test is judged (tasks/experiments/counting/metrics.py)."""

    name: str
    """Name in the table of metrics."""
    role: Literal["success", "guardrail"]
    """success: a sure gain may promote; it is a guardrail, too. guardrail: must not be worse than its margin."""
    better: Literal["more", "fewer", "same"]
    """Direction of a gain; same: any change is a loss."""
    per: Denominator
    """What its sum is divided by."""
    margin: float
    """Loss that the team would give up for a gain in another metric."""
    relative: bool
    """Whether the margin is a share of the champion's mean; else it is in the metric's unit."""
    weight: float = 0.0
    """Of a success metric, its share in alpha; 0 for all of them: equal shares."""
    immediate: bool = False
    """Whether a sure breach of the margin ends the test at once (tasks/experiments/verdict/breach.py)."""


NOT_YET_RECORDED: Mapping[str, Any] = {
    **{"shadow_requests": 0, "shadow_share": 0.0, "ramp": (), "watch_seconds": 0.0, "holdout_share": 0.0},
    **{"anchor_share": 0.0, "anchor_days": 0, "breach_alpha": 0.0},
}
"""Values of a stored plan's missing fields: each stage and check is off."""


class Plan(GateSettings):
    """How a test is judged, written when it opens: later settings change nothing. Fields that are no settings are constants
    of the version that wrote the plan."""

    rules: int = 1
    """RULES when it was written: a decision is recomputed by these rules only."""
    planned: str = ""
    """What the planner chose and why (tasks/experiments/planning/planner.py); empty: all is by setting."""
    mode: Mode
    """Rule to ship by (tasks/experiments/verdict/rules.py)."""
    cautious: bool = False
    """Whether the mode is superiority, and not that of the settings, since the champions beside the anchor leaned to a loss. The
    version that is then promoted leaves the anchor as it is."""
    design: Design = "by_user"
    """Who meets which version (tasks/experiments/verdict/designs.py)."""
    metrics: tuple[PlannedMetric, ...]
    """The metric that is compared."""
    srm_alpha: float = 0.001
    """Error level of each quality check, for all looks together: the split of users (sample-ratio mismatch), users who drop out,
    requests per user, and judged per shown completion. A test that fails one ends as broken."""
    breach_alpha: float = 0.0
    """Error level of the search for a breach, for all looks and metrics together: failures, times or empty answers surely beyond
    their margin roll a challenger back at once, before `min_requests` and without labels. 0: none is looked for."""
    max_both_arms: float = 0.02
    """Maximum share of users, and at least one, who were served by both arms of a test by user; they are set aside. With more,
    the test ends as broken."""
    max_label_gap: float = 0.05
    """Maximum difference of judged completions per shown one between the arms, as a share, that does not break a test:
    completions without an answer are left out, which is fair only if both arms have as many. Where only the newer half differs,
    answers are late, and the verdict waits."""
    max_request_gap: float = 0.05
    """Maximum difference of requests per user between the arms, in logarithms, that does not break a test: rates per request
    cannot be compared where the requests differ."""
    baseline_seconds: float = Field(ge=0)
    """Seconds before the experiment from which each user's own rates are read, to adjust for differences between users. 0: no
    adjustment."""
    ramp_requests: int = Field(0, ge=0)
    """Minimum requests on the challenger's arm in each stage of the ramp. 0: its time is enough."""
    anchor_seconds: float = Field(0.0, ge=0)
    """Seconds for which each new champion is compared with the anchor before the next test opens, since a test takes the anchor's
    slot. 0: only as long as no candidate waits."""
    shadow_share: float = Field(0.2, ge=0, le=1)
    """Share of the champion's requests of which a copy is made in the shadow stage. 0: no copies; only in earlier plans."""
    holdout_share: float = Field(0.1, ge=0, lt=1)
    """Share of users, or of their blocks of time, whom the earlier champion serves during probation. 0: nobody; only in earlier
    plans."""
    anchor_days: int = Field(28, ge=0)
    """Days of requests that the comparison with one anchor adds up. 0: no anchor; only in earlier plans."""
    shadow_failures: float = 0.02
    """Maximum share of copies that the challenger does not answer to their end."""
    shadow_slowdown: float = 2.0
    """Maximum ratio of the challenger's median time to the first token, and in all, to the champion's. 0: no limit."""
    shadow_similarity: float = 0.1
    """Minimum mean similarity of both versions' texts, from 0, nothing in common, to 1, equal. Two equal models that sample
    differ, too: this finds broken weights, not changed ones. 0: no limit."""
    anchor_alpha: float = 0.2
    """Two-sided error level of the comparison with the anchor, for all looks and champions of `anchor_days`; the chance that
    champions that are no worse give way to the anchor is half of it."""
    settle_seconds: float
    """Seconds to wait for feedback before a request counts (`collect.settle_seconds`)."""
    join_seconds: float
    """Maximum seconds between a completion and its feedback (`collect.join_seconds`)."""
    sample: float = Field(1.0, gt=0, le=1)
    """Share of the users, by keyed hash, whose requests the test counts: of others it reads nothing (`collect.most_requests`)."""
    known_user_days: float
    """Days without a request after which a user is new again (tasks/labels/users.py)."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_later_stages(cls, values: Any) -> Any:
        """A plan without a field was written before the field existed: it has no such stage and no such check."""
        if not isinstance(values, dict):
            return values
        return {**NOT_YET_RECORDED, **values}


class Stage(Record):
    """A stage of a test. It is decided a moment before it starts, so that every replica of serving knows it by then."""

    name: StageName
    """Name of the stage."""
    share: float
    """Share of users, or of a user's blocks of time, on the challenger's arm, 0 to 1."""
    started: float
    """When it starts, in Unix seconds: requests from then on belong to it. In a crossover, the start of a block."""
    ends: float = 0.0
    """When it ends by itself, in Unix seconds; 0: the next stage, or the end of the test, ends it."""
    reason: str = ""
    """Why it was entered, as a sentence; empty for the first."""
    by: str = ""
    """Who asked for it; empty: the gate entered it."""


class ExperimentRecord(Record):
    """An A/B test, from its first stage to the end of the watch over the version that it promoted; or the comparison of
    successive champions with the anchor, a stage each."""

    id: str
    """Experiment id; salts the assignment of users to arms."""
    champion: str
    """Version on the champion's arm; of a comparison with the anchor, the anchor."""
    challenger: str
    """Version on the challenger's arm; beside an anchor, the newest champion."""
    share: float
    """Planned share of users, or of a user's blocks of time, on the challenger's arm, 0 to 1."""
    started: float
    """When it opened."""
    plan: Plan | None = None
    """How it is judged; none in moves by hand and in tests opened before plans were recorded."""
    stages: tuple[Stage, ...] = ()
    """Stages so far, the last one maybe about to start. Empty in moves by hand and in tests opened before stages were recorded:
    the whole of these is a test at the planned share."""

    @model_validator(mode="after")
    def _in_order(self) -> "ExperimentRecord":
        starts = [stage.started for stage in self.stages]
        if starts != sorted(starts):
            raise ValueError(f"experiment {self.id}: stages must be in the order of their start, got {starts}")
        return self

    @property
    def stage(self) -> Stage:
        """The last stage, which may start in a moment."""
        return self.stages[-1] if self.stages else Stage(name="test", share=self.share, started=self.started)

    @property
    def counting(self) -> Stage:
        """The last stage that is no pause."""
        return next((stage for stage in reversed(self.stages) if stage.name != "paused"), self.stage)

    @property
    def counts_from(self) -> float:
        """Since when requests count: the start of the last stage that is no pause. One that a pause interrupted goes on: nobody
        changed arms meanwhile."""
        last = self.counting
        return next((s.started for s in self.stages if (s.name, s.share) == (last.name, last.share)), last.started)

    def stage_at(self, now: float) -> Stage:
        """Return the stage to which a request at a time belongs; the first one also before its start."""
        begun = [stage for stage in self.stages if stage.started <= now]
        return begun[-1] if begun else self.stages[0] if self.stages else self.stage


class Rate(Record):
    """A mean per request with its 95 % interval, clustered by user."""

    rate: float
    """The mean."""
    low: float
    """Lower bound of the interval."""
    high: float
    """Upper bound of the interval."""
    n: int
    """Number of requests."""


class MetricResult(Record):
    """One metric of a look."""

    name: str
    """Name in the plan."""
    role: Literal["success", "guardrail"]
    """Role in the plan."""
    champion: float
    """Mean of the champion's arm."""
    challenger: float
    """Mean of the challenger's arm."""
    estimate: float | None
    """Difference, challenger minus champion, adjusted for the users' history; of logarithms for `requests_per_user`. None where
    the arms cannot be compared."""
    low: float | None
    """Lower bound of the difference."""
    high: float | None
    """Upper bound of the difference."""
    level: float
    """Level of the two-sided interval, 0 to 1."""
    margin: float
    """Margin in the unit of the difference."""
    state: Literal["better", "not_worse", "unsure", "worse"]
    """better: surely a gain. not_worse: surely above the margin. worse: surely below it."""


class CheckResult(Record):
    """A quality check of a test."""

    name: str
    """Name of the check (tasks/experiments/verdict/checks.py)."""
    state: Literal["passed", "hold", "broken"]
    """hold: there is no verdict while it lasts. broken: the test ends without a verdict on the challenger."""
    reason: str
    """The numbers of the check, as a sentence."""


class Verdict(Record):
    """The verdict of the A/B gate, with its reason and statistics."""

    verdict: VerdictName
    """promote, reject, breach, broken or undecided."""
    reason: str
    """The reason as a sentence, with the numbers behind it."""
    estimate: float | None = None
    """Difference of acceptance per request, challenger minus champion."""
    low: float | None = None
    """Lower bound of the always-valid interval of the difference."""
    high: float | None = None
    """Upper bound of the always-valid interval of the difference."""
    requests: dict[Arm, int] = Field(default={})
    """Number of requests in each arm."""
    users: dict[Arm, int] = Field(default={})
    """Number of users in each arm."""
    acceptance: dict[Arm, Rate] = Field(default={})
    """Acceptance per request of each arm (tasks/statistics/answered.py); an arm with fewer than two users, or without an answer,
    has no entry."""
    kept: dict[Arm, Rate] = Field(default={})
    """Kept characters per request of each arm, as `acceptance`; empty in verdicts of earlier versions."""
    saved: dict[Arm, Rate] = Field(default={})
    """Seconds saved per request of each arm (infra/model/time_saved.py), as `acceptance`; it decides nothing. Empty in verdicts
    of earlier versions."""
    promising: bool = False
    """Whether a rejected challenger only lacked proof of a gain and was surely not accepted less than the margin allows; training
    continues from it."""
    inconclusive: bool = False
    """Whether a planned end was reached without proof of a gain or a loss."""
    breached: str = ""
    """Guardrail whose sure breach ended the test or took the version back; empty: none."""
    leaning: bool = False
    """Of champions beside the anchor that go on: whether their acceptance leans to a loss, or a check fails: then the next test
    needs a gain."""
    metrics: tuple[MetricResult, ...] = ()
    """Every metric of the plan; empty while the arms cannot be compared."""
    checks: tuple[CheckResult, ...] = ()
    """Every quality check."""


class ArmEvidence(Record):
    """What a verdict was computed from, by user but without their names: equal positions of the lists are one user's."""

    during: dict[Arm, dict[str, tuple[float, ...]]]
    """By arm and name of a sum (tasks/experiments/counting/totals.py), each user's sum during the test."""
    later: dict[Arm, dict[str, tuple[float, ...]]]
    """The part of `during` from the test's second half; under rules 1, for a crossover, from each block's. Of a comparison with
    the anchor, the part of the newest champion."""
    in_block: dict[Arm, dict[str, tuple[float, ...]]] = Field(default={})
    """The part of `during` from the second half of each block of time."""
    before: dict[str, tuple[float, ...]]
    """Each user's sums before the test."""
    immediate: dict[Arm, dict[str, tuple[float, ...]]] = Field(default={})
    """As `during`, with the requests that are younger than the settling time, without the cap of credentials: for a breach."""
    absent: dict[Arm, int]
    """Users with a history who are assigned to the arm and made no request that counts."""
    late: int = 0
    """Requests that are left out, since the stage before assigned them."""
    overdue: int = 0
    """Users, of a crossover users' blocks of time, with such a request later than a late replica explains."""


class Copies(Record):
    """The figures of the copies that a test's challenger answered unseen."""

    number: int
    """Copies made."""
    failed: int
    """Copies that were not answered to their end."""
    same_line: float = 0.0
    """Share of the answered copies with the champion's first line."""
    similarity: float = 0.0
    """Mean similarity of the texts of the answered copies, 0 to 1."""
    first: float = 0.0
    """Ratio of the challenger's median time to the first token to the champion's, at the same requests; 0 without any."""
    total: float = 0.0
    """Likewise, to the end."""
    empty: tuple[float, float] = (0.0, 0.0)
    """Shares of blank texts, the champion's and the challenger's."""


class Decision(Record):
    """A release decision with everything it is based on; written once."""

    experiment: ExperimentRecord
    """The A/B test that it ends."""
    verdict: Verdict
    """The gate's verdict."""
    decided: float
    """When the decision was made."""
    by: str
    """"gate", "watch" (over a promoted version), "anchor" (the comparison with it), or the person who decided by hand."""
    watch: Stage | None = None
    """The watch that follows a promotion by the gate; none: everybody gets the new champion at once."""
    inputs: tuple[ObjectReference, ...] = ()
    """Objects the verdict was computed from: counted hours and days, and the event objects since."""
    evidence: ArmEvidence | None = None
    """The totals the verdict was computed from: tasks/experiments/reports/recompute.py returns the verdict again, bit by bit.
    None for a decision by hand, on a test that is void, and in the shadow stage."""
    copies: Copies | None = None
    """What the verdict was computed from in the shadow stage."""
    watched: ExperimentRecord | None = None
    """Of a rollback by the watch, the test whose promoted version it watched, with its plan: `experiment` is the rollback. Of the
    return of the anchor, the comparison with it."""
    dataset: str = ""
    """SHA-256 of the manifest the challenger was trained from; empty for a version that no cycle made."""
