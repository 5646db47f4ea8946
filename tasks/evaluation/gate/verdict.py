"""The offline gate: a candidate passes if in every guardrail it is surely not worse than the champion by a margin.

Each guardrail is a test of its own at level alpha, and the candidate passes only if all of them do, so that the chance to pass
with one true loss of its margin is at most alpha however many there are (the intersection-union test: Berger 1982,
"Multiparameter hypothesis testing and acceptance sampling"). Many guardrails cost power: sizes and margins are chosen so that an
equal candidate passes in nine of ten cases (`tabloop bench gate`).

A candidate fails where a guardrail is not surely within its margin and surely worse, at alpha divided by the number of guardrails
(Bonferroni). Everything else is undecided, which does not pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from infra.settings.schema import Gate
from tasks.evaluation.gate.guardrails import Check, checks_of
from tasks.evaluation.gate.paired import LEAST_FILES, Difference, Levels, differences
from tasks.evaluation.gate.values import Places, Values
from tasks.evaluation.scores import PositionScore

Verdict = Literal["passed", "failed", "undecided"]


@dataclass(frozen=True)
class Finding:
    """The result of one guardrail. Numbers have the unit of the measure; bounds are one-sided at level alpha."""

    guardrail: str
    slice: str
    """Part of the places; empty: all."""
    worse: Literal["less", "more"]
    margin: float
    candidate: float | None
    """The candidate's mean; None without any value."""
    champion: float | None
    difference: float | None
    low: float | None
    """None: the places give no bound."""
    high: float | None
    places: int
    files: int
    verdict: Verdict
    reason: str

    @property
    def name(self) -> str:
        """The guardrail with its slice."""
        return f"{self.guardrail} ({self.slice})" if self.slice else self.guardrail


@dataclass(frozen=True)
class GateResult:
    """The verdict with its findings."""

    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    """Skipped checks, each with the reason."""


def gate_candidate(
    candidate: Sequence[PositionScore], champion: Sequence[PositionScore], settings: Gate, *, judge_counts: bool = True
) -> GateResult:
    """Return the gate's verdict on scores at the same places. Raises ValueError: the scores are of different places."""
    places = [score.place for score in champion]
    if places != [score.place for score in candidate]:
        raise ValueError(
            f"gate: {len(candidate)} places of the candidate, {len(places)} others of the champion; score both on one set"
        )
    return gate_values(Values.of(candidate), Values.of(champion), Places.of(champion), settings, judge_counts=judge_counts)


def gate_values(candidate: Values, champion: Values, places: Places, settings: Gate, *, judge_counts: bool = True) -> GateResult:
    """Return the gate's verdict on two models' measures at the same places."""
    asked = checks_of(candidate, champion, places, settings, judge_counts=judge_counts)
    if (count := int(places.asks.sum())) < settings.min_places:
        reason = f"{count} places; evaluate.gate.min_places asks for {settings.min_places}"
        return GateResult("undecided", reason, (), asked.left_out)
    found = differences_of(asked.checks, places, settings)
    findings = tuple(
        finding_of(check, difference, mean_of(candidate, check), mean_of(champion, check))
        for check, difference in zip(asked.checks, found, strict=True)
    )
    return conclude(findings, asked.left_out)


def differences_of(checks: Sequence[Check], places: Places, settings: Gate) -> list[Difference]:
    """Return the difference of each check, with the bounds of the gate's levels."""
    levels = Levels(settings.alpha, settings.alpha / len(checks))
    return differences([check.column for check in checks], places.files, levels)


def conclude(findings: Sequence[Finding], left_out: Sequence[str]) -> GateResult:
    """Return the worst verdict among the findings."""
    of = {verdict: [f for f in findings if f.verdict == verdict] for verdict in ("failed", "undecided", "passed")}
    verdict: Verdict = "failed" if of["failed"] else "undecided" if of["undecided"] or not findings else "passed"
    reason = (
        "; ".join(f.reason for f in of[verdict]) if verdict != "passed" else f"within the margins of {len(findings)} guardrails"
    )
    return GateResult(verdict, reason or "there is no guardrail", tuple(findings), tuple(left_out))


def finding_of(check: Check, difference: Difference, candidate: float, champion: float) -> Finding:
    """Return the finding of a guardrail on a difference."""
    sign = 1.0 if check.guardrail.worse == "less" else -1.0
    worst = difference.low if sign > 0 else -difference.high
    surely = difference.surely_high if sign > 0 else -difference.surely_low
    verdict: Verdict = "passed" if worst > -check.margin else "failed" if surely < 0 else "undecided"
    return Finding(
        guardrail=check.guardrail.name,
        slice=check.slice,
        worse=check.guardrail.worse,
        margin=check.margin,
        candidate=_finite(candidate),
        champion=_finite(champion),
        difference=_finite(difference.estimate),
        low=_finite(difference.low),
        high=_finite(difference.high),
        places=difference.places,
        files=difference.files,
        verdict=verdict,
        reason=explain(check, difference, verdict),
    )


def explain(check: Check, difference: Difference, verdict: Verdict) -> str:
    """Return a finding in words, with its numbers."""
    name = f"{check.guardrail.name} ({check.slice})" if check.slice else check.guardrail.name
    limit = f"{'-' if check.guardrail.worse == 'less' else '+'}{check.margin:g} {check.guardrail.measure.unit}"
    if not math.isfinite(difference.low):
        found = f"{difference.places} places in {difference.files} files are too few"
        return f"{name}: {found}, {LEAST_FILES} files of equal size are asked; the margin is {limit}"
    what = {
        "passed": "within the margin",
        "failed": f"surely {check.guardrail.meaning}",
        "undecided": "not surely within the margin",
    }
    return f"{name}: {what[verdict]}, {difference.estimate:+.3g} [{difference.low:+.3g}, {difference.high:+.3g}], margin {limit}"


def mean_of(values: Values, check: Check) -> float:
    """Return the mean of a check's measure over its places."""
    known = values.by_measure[check.guardrail.measure.name][check.column.known]
    return float(np.mean(known)) if len(known) else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
