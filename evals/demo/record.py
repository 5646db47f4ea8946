"""The demo's report: the fields of report.json."""

from typing import Literal

from pydantic import Field

from evals.developers.draws import DeveloperKind
from evals.developers.grounds import Ground
from infra.pages.charts import ConfidenceSequence
from infra.records import MeasuredGroup, Rate, Record, Verdict, VerdictName
from tasks.showing.reliability import Reliability


class Difference(Record):
    """Champion minus base with its 95 % interval, paired by user."""

    estimate: float
    low: float
    high: float


class Comparison(Record):
    """The same developers at the same positions, once with the base and once with the champion."""

    base: Rate
    champion: Rate
    difference: Difference


class RateAt(Rate):
    """A rate of a version that is served at one temperature."""

    temperature: float
    """Sampling temperature."""


class Baselines(Record):
    """The champion beside the base, per request, at the same places of one ground."""

    base_best: RateAt
    """The base at the temperature that its card names as its best."""
    base_served: Rate
    """The base as the settings serve it."""
    champion: Rate
    """The champion as the settings serve it."""
    difference: Difference
    """Champion minus the base at its best."""
    champion_all: Rate | None = None
    """The champion's completions, had all of each been shown; none where that is not known."""
    learning: Difference | None = None
    """Of the difference, what was learnt: the champion with all shown minus the base at its best."""
    showing: Difference | None = None
    """The rest of the difference, what the decision to show adds: the champion minus itself with all shown."""


class GroundRow(Baselines):
    """The accepts per request on one ground (evals/developers/grounds.py)."""

    kept_characters: Baselines
    """The same of accepted characters that stay."""
    time_saved: Baselines
    """Seconds saved per hour of writing (infra/model/time_saved.py); each rate's n counts the hours."""


class Exploration(Record):
    """What the requests that explore cost and bring, over the labelled requests of all cycles."""

    share: float
    """Share of requests that explore (serving.sampling.exploring_share)."""
    exploring: Rate | None = None
    """Accepted per request of those that explored; none if fewer than two users did."""
    others: Rate | None = None
    """Accepted per request of the others."""
    difference: Difference | None = None
    """Exploring minus others, over users; both are live requests, at other places."""
    cost: float | None = None
    """Accepted per request that exploring costs over all requests: minus the difference, times the share."""
    taught: int = 0
    """Exploring requests that an update was trained on: what exploring brings."""


class Step(Record):
    """One step of the optimizer (tasks/trainer/job.py)."""

    reward: float | None = None
    """Mean reward of its served and drawn actions; none where only written text teaches, as the next."""
    kl: float | None = None
    """Estimate of the divergence of their tokens from the policy it began with, per token."""
    settled_loss: float | None = None
    """Mean cross-entropy of the settled tokens, in nats; none without any, and in older reports."""
    gradient_norm: float | None = None
    """Norm of the gradient before clipping; none in older reports, as the next."""
    learning_rate: float | None = None


class CycleRow(Record):
    """One cycle of the loop."""

    cycle: str
    parent: str
    """Version from which training started."""
    version: str
    """Version that the cycle registered, also if it did not pass the offline gate; empty if there is none."""
    samples: int
    requests: int
    """Requests of the cycle's window; each is in one bucket."""
    buckets: dict[str, int]
    quarantined: dict[str, int]
    """Quarantined requests by reason."""
    measures: tuple[MeasuredGroup, ...]
    """What the window's completions were worth, by group (infra/records/measures.py)."""
    mean_reward: float | None
    """Of the served and drawn actions trained on; none where only written text taught."""
    clip_fraction: float | None
    """Of the last step that served or drawn actions teach, as the next; none without one."""
    kl: float | None
    logprob_difference: float | None
    """Largest difference between the trainer's and the server's log-probability of a served token."""
    judge: float | None
    """Mean score of the held-out judge, 0 to 10."""
    verdict: Literal["promote", "reject", "breach", "broken", "undecided", "refused", "running"]
    """Of the A/B test; refused: the candidate met no user."""
    reason: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    calibration: Reliability | None = None
    """Of the estimate that the cycle fitted; none without one."""
    steps: list[Step] = Field(default_factory=list)
    """Steps of the update, in order."""


class ExperimentRow(Record):
    """One A/B test."""

    experiment: str
    champion: str
    challenger: str
    verdict: VerdictName | Literal["running"]
    reason: str
    sequences: list[ConfidenceSequence]
    """One for each success metric of its plan; none before the first look."""
    result: Verdict | None = None
    """The verdict, or before it the newest look, with both arms' figures; none before the first look."""


class Example(Record):
    """One place, with the suggestions of base and champion."""

    kind: Literal["gain", "loss"]
    """gain: the champion's was accepted and the base's was not; loss: the reverse."""
    file: str
    right: int
    """Characters of the accepted suggestion that the file goes on with."""
    prefix: str
    truth: str
    base: str
    base_accepted: bool
    champion: str
    champion_accepted: bool


class Changes(Record):
    """Places of the closing comparison on later code, by outcome."""

    gains: int
    """Places where only the champion's suggestion was accepted."""
    losses: int
    """Places where only the base's was."""
    examples: list[Example]
    """Of gains and of losses those with the most right characters, as many of each; infra/docs/demo-report.md has the rule."""


class Report(Record):
    """report.json."""

    seed: int
    developers: DeveloperKind
    rates: str
    """Digest of the developers' rates (Quirks.digest)."""
    seconds: float
    """Wall-clock seconds of this run."""
    base_version: str
    champion_version: str
    cycles: int
    promotions: int
    rejections: int
    judge: str
    """Judge of the held-out positions ("reference": similarity to the real text)."""
    acceptance: Comparison
    """Accepted completions per request, including requests with nothing shown."""
    acceptance_of_shown: Comparison
    """Accepted completions per completion shown; each rate's n counts completions shown."""
    accepted_characters_per_request: Comparison
    shown: Comparison
    """Share of requests with something shown."""
    grounds: dict[Ground, GroundRow]
    """The three baselines on each ground; the four comparisons above are of the ground `later`."""
    exploration: Exploration
    """What exploring costs and brings."""
    calibration: Reliability | None
    """Of the last cycle's estimate of kept characters; None if no cycle fitted one."""
    champion_calibration: Reliability | None = None
    """Of the chances by which the champion's completions were shown in the closing comparison; none without an estimate."""
    history: list[CycleRow]
    experiments: list[ExperimentRow]
    """Every A/B test of a cycle, oldest first."""
    changes: Changes
    addresses: dict[str, str]

    @property
    def improved(self) -> bool:
        """Whether the champion beats the base at its best on the team's later code, and is not surely worse on new files.

        It beats it in accepts or in kept characters per request with the whole interval above 0, and is not surely worse in the
        other.
        """
        later, new = self.grounds["later"], self.grounds["new"]
        of_later, of_new = ((g.difference, g.kept_characters.difference) for g in (later, new))
        return any(d.low > 0 for d in of_later) and all(d.high >= 0 for d in (*of_later, *of_new))
