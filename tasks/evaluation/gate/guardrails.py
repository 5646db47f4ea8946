"""The guardrails of the offline gate: the metrics in which a candidate must not be worse than the champion."""

from dataclasses import dataclass, replace
from typing import Literal

from infra.settings.schema import Gate
from tasks.evaluation.gate import slices
from tasks.evaluation.gate.measures import BY_NAME, Measure
from tasks.evaluation.gate.paired import LEAST_FILES, Column
from tasks.evaluation.gate.values import Places, Values

MIN_PLACES = 60
"""Fewest places for a verdict on a slice. Smaller ones are named; those of one kind, as languages, count together where they have
this many."""
MIN_FILES = 8
"""Fewest files of a project for a verdict on it, those of unequal size as fewer: places of one file are alike, and a few files do
not show how files differ. Projects with fewer count together, as those with too few places do, where they have as many. Other
slices need paired.LEAST_FILES."""
SLICED = "edit_similarity"
"""The metric that is guarded in every slice."""


@dataclass(frozen=True)
class Guardrail:
    """A metric, the direction in which it gets worse, and the reason to guard it."""

    name: str
    """Name of the metric, and of its margin in the settings."""
    measure: Measure
    worse: Literal["less", "more"]
    meaning: str
    """The defect of a candidate that fails it."""
    where_known: bool = False
    """Whether the places alone determine where it applies, for example by language: it is then skipped if it applies at too
    few."""


GUARDRAILS = (
    Guardrail("exact", BY_NAME["exact"], "less", "right less often"),
    Guardrail("edit_similarity", BY_NAME["edit_similarity"], "less", "less similar to the true text"),
    Guardrail("matching_characters", BY_NAME["matching_characters"], "less", "fewer right characters from the start"),
    Guardrail("passed", BY_NAME["passed"], "less", "passes fewer tests", where_known=True),
    Guardrail("judged", BY_NAME["judged"], "less", "scored lower by the judge"),
    Guardrail("syntax", BY_NAME["syntax"], "more", "breaks the syntax of files more often", where_known=True),
    Guardrail("silent", BY_NAME["silent"], "less", "writes more often where nothing should be written", where_known=True),
    # A policy that learns from developers' behaviour exploits these first.
    Guardrail("empty", BY_NAME["empty"], "more", "empty more often"),
    Guardrail("shorter", BY_NAME["length"], "less", "shorter"),
    # Relative to the true text: a candidate that writes more where the champion wrote too little is no worse for it.
    Guardrail("longer", BY_NAME["overshoot"], "more", "longer beyond the true text"),
    Guardrail("comments", BY_NAME["comments"], "more", "writes comments more often", where_known=True),
    Guardrail("repetition", BY_NAME["repetition"], "more", "repeats itself more"),
    Guardrail("variety", BY_NAME["variety"], "less", "gives the same answers more often"),
    Guardrail("drift", BY_NAME["drift"], "more", "further from the champion's distribution"),
)


@dataclass(frozen=True, eq=False)
class Check:
    """A guardrail on all places or on a slice, with the values that it compares."""

    guardrail: Guardrail
    slice: str
    """Empty: all places."""
    margin: float
    column: Column
    slices: tuple[str, ...] = ()
    """The check covers places in any of these slices; empty: all places."""


@dataclass(frozen=True)
class Checks:
    """The checks of a candidate, and the skipped ones with their reasons."""

    checks: tuple[Check, ...]
    left_out: tuple[str, ...]


def checks_of(candidate: Values, champion: Values, places: Places, settings: Gate, *, judge_counts: bool = True) -> Checks:
    """Return the checks of all places, then of the slices."""
    checks, left_out = [], []
    for guardrail in GUARDRAILS:
        margin = settings.margins.get(guardrail.name)
        if margin is None:
            left_out.append(f"{guardrail.name}: evaluate.gate.margins.{guardrail.name} is not set")
        elif guardrail.name == "judged" and not judge_counts:
            left_out.append("judged: the judge's scores do not count")
        else:
            column = column_of(guardrail, candidate, champion)
            few = too_few(column, places, MIN_PLACES) if guardrail.where_known else ""
            checks += [] if few else [Check(guardrail, "", margin, column)]
            left_out += [f"{guardrail.name}: {few}"] if few else []
    sliced, too_small = slice_checks(candidate, champion, places, settings)
    return Checks((*checks, *sliced), (*left_out, *too_small))


def column_of(guardrail: Guardrail, candidate: Values, champion: Values) -> Column:
    """Return the values that a guardrail compares at each place."""
    measure = guardrail.measure
    return measure.column(candidate.by_measure[measure.name], champion.by_measure[measure.name])


def too_few(column: Column, places: Places, least: int) -> str:
    """Return why a metric that some places lack cannot be checked; "" if it can."""
    known, asked = int(column.known.sum()), int(places.asks.sum())
    if known < min(least, max(asked, 1)):
        return f"known at {known} of {asked} places, a verdict needs {least}"
    return slices.lacks_files(places.files[column.known], LEAST_FILES)


def slice_checks(candidate: Values, champion: Values, places: Places, settings: Gate) -> tuple[list[Check], list[str]]:
    """Return a check for each slice that is large enough, and a note on each other slice. A slice that covers every place is
    skipped."""
    guardrail = next(g for g in GUARDRAILS if g.name == SLICED)
    whole = column_of(guardrail, candidate, champion)
    found, notes = slices.of_places(places, whole.known, MIN_PLACES, MIN_FILES)
    checks = []
    for name, one in found.items():
        margin = settings.slice_margins.get(name, settings.margins["slices"])
        checks.append(Check(guardrail, name, margin, replace(whole, known=whole.known & one.within), one.names))
    return checks, notes
