"""The guardrails of the offline gate: where a candidate must not be worse than the champion."""

from dataclasses import dataclass, replace
from typing import Literal

from infra.settings.schema import Gate
from tasks.evaluation.gate import slices
from tasks.evaluation.gate.measures import BY_NAME, Measure
from tasks.evaluation.gate.paired import Column
from tasks.evaluation.gate.values import Places, Values

SLICED = "edit_similarity"
"""The measure that is guarded in every slice."""


@dataclass(frozen=True)
class Guardrail:
    """A measure, the direction in which it gets worse, and why it is guarded."""

    name: str
    """Also the name of its margin in the settings."""
    measure: Measure
    worse: Literal["less", "more"]
    meaning: str
    """What is wrong with a candidate that fails it."""
    where_known: bool = False
    """Whether the places alone tell where it applies, as by their language: it is not checked where it applies at too few."""


GUARDRAILS = (
    Guardrail("exact", BY_NAME["exact"], "less", "right less often"),
    Guardrail("edit_similarity", BY_NAME["edit_similarity"], "less", "less similar to the true text"),
    Guardrail("matching_characters", BY_NAME["matching_characters"], "less", "fewer right characters from the start"),
    Guardrail("passed", BY_NAME["passed"], "less", "passes fewer tests", where_known=True),
    Guardrail("judged", BY_NAME["judged"], "less", "scored lower by the judge"),
    Guardrail("syntax", BY_NAME["syntax"], "more", "breaks the syntax of files more often", where_known=True),
    Guardrail("silent", BY_NAME["silent"], "less", "writes more often where nothing should be written", where_known=True),
    # A policy that is rewarded for what developers do finds these first.
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
    """A guardrail on all places or on a slice, with what it compares."""

    guardrail: Guardrail
    slice: str
    """Empty: all places."""
    margin: float
    column: Column
    slices: tuple[str, ...] = ()
    """Slices of a place that put it among those of the check; empty: all places."""


@dataclass(frozen=True)
class Checks:
    """What a candidate is checked for, and what not, each with the reason."""

    checks: tuple[Check, ...]
    left_out: tuple[str, ...]


def checks_of(candidate: Values, champion: Values, places: Places, settings: Gate, *, judge_counts: bool = True) -> Checks:
    """Return the checks of all places, then of the slices."""
    checks, left_out = [], []
    for guardrail in GUARDRAILS:
        margin = getattr(settings.margins, guardrail.name)
        if margin is None:
            left_out.append(f"{guardrail.name}: evaluate.gate.margins.{guardrail.name} is not set")
        elif guardrail.name == "judged" and not judge_counts:
            left_out.append("judged: the judge's scores do not count")
        else:
            column = column_of(guardrail, candidate, champion)
            few = too_few(column, places, settings.min_slice_places) if guardrail.where_known else ""
            checks += [] if few else [Check(guardrail, "", margin, column)]
            left_out += [f"{guardrail.name}: {few}"] if few else []
    sliced, too_small = slice_checks(candidate, champion, places, settings)
    return Checks((*checks, *sliced), (*left_out, *too_small))


def column_of(guardrail: Guardrail, candidate: Values, champion: Values) -> Column:
    """Return what a guardrail compares at each place."""
    measure = guardrail.measure
    return measure.column(candidate.by_measure[measure.name], champion.by_measure[measure.name])


def too_few(column: Column, places: Places, least: int) -> str:
    """Return why a measure that some places do not have cannot be checked; the empty text where it can."""
    known, asked = int(column.known.sum()), int(places.asks.sum())
    return f"known at {known} of {asked} places, a verdict needs {least}" if known < min(least, max(asked, 1)) else ""


def slice_checks(candidate: Values, champion: Values, places: Places, settings: Gate) -> tuple[list[Check], list[str]]:
    """Return a check for each slice that is large enough, and what is said of the others. A slice of all places is none."""
    guardrail = next(g for g in GUARDRAILS if g.name == SLICED)
    whole = column_of(guardrail, candidate, champion)
    found, notes = slices.of_places(places, whole.known, settings.min_slice_places, settings.min_project_files)
    checks = []
    for name, one in found.items():
        margin = settings.slice_margins.get(name, settings.margins.slices)
        checks.append(Check(guardrail, name, margin, replace(whole, known=whole.known & one.within), one.names))
    return checks, notes
