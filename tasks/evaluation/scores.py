"""The scores of a model at each place, and their means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infra.model.language import language
from tasks.evaluation import judge as judges
from tasks.evaluation import positions
from tasks.evaluation.metrics.place import Measured, measure

SHORT, LONG = 8, 24
"""Characters of the true text up to which a place counts as short, and beyond which as long."""


@dataclass(frozen=True)
class PositionScore:
    """The result at one position. Two Scores over the same positions can be compared in pairs."""

    file: str
    offset: int
    completion: str
    """The text as it is served, all lines."""
    truth: str
    exact: bool
    edit_similarity: float
    """0 to 1."""
    matching_characters: int
    """Right characters from the start."""
    judged: float | None
    """The judge's score, 0 to 10; None where the judge failed."""
    slices: tuple[str, ...] = ()
    """Slices that contain the place, such as "language: py"."""
    drift: float | None = None
    """Drift: mean log-probability of the generated tokens under the model minus that under a reference model, in nats per token;
    None if not computed."""
    measured: Measured | None = None
    """All metrics of the completion (tasks/evaluation/metrics/place.py); None in invented scores of tests."""
    id: str = ""
    """Name of the place within its set; empty: file and offset name it."""
    set: str = ""
    """Name of the set; empty where there is only one."""
    project: str = ""
    """Repository or project of the file; empty if unknown."""
    truth_logprob: float | None = None
    """Mean log-probability of the true text's tokens, in nats; None where it is not computed."""

    @property
    def place(self) -> tuple[str, str]:
        """The place's unique name among all sets: two sets may contain the same file and offset."""
        return (self.set, self.id or f"{self.file}:{self.offset}")

    @property
    def cluster(self) -> str:
        """The file as unit of the statistics, since its places are alike; it includes set and project, since paths may repeat."""
        return "/".join((self.set, self.project, self.file))

    @property
    def asks(self) -> bool:
        """Whether text should be written at the place; otherwise only silence counts."""
        return bool(self.truth.strip())


@dataclass(frozen=True)
class Scores:
    """The means over all positions, and the score of each position."""

    judge: str
    """Name of the judge that gave `judged`."""
    temperature: float
    exact: float
    edit_similarity: float
    matching_characters: float
    """Right characters from the start, per position."""
    judged: float
    """The judge's score over the positions that it could judge."""
    empty: float
    """Share of positions with an empty completion."""
    length: float
    """Characters per completion."""
    judge_failures: float
    """Share of positions that the judge could not score."""
    seconds: float
    by_position: tuple[PositionScore, ...]


def score_position(
    position: positions.Position,
    text: str,
    judgement: judges.Judgement,
    drift: float | None = None,
    *,
    set: str = "",
    truth_logprob: float | None = None,
) -> PositionScore:
    """Return the score of a completion as it is served."""
    measured = measure(position, text)
    return PositionScore(
        file=position.file,
        offset=position.offset,
        completion=text,
        truth=position.truth,
        exact=bool(measured.exact),
        edit_similarity=measured.edit_similarity,
        matching_characters=int(measured.matching_characters),
        judged=judgement.score if isinstance(judgement, judges.Scored) else None,
        slices=slices_of(position, set),
        drift=drift,
        measured=measured,
        id=position.id,
        set=set,
        project=position.project,
        truth_logprob=truth_logprob,
    )


def slices_of(position: positions.Position, set: str = "") -> tuple[str, ...]:
    """Return the slices of a place: language, length of the true text, position in the line, set, project.

    A place where nothing should be written has none.
    """
    if not position.asks:
        return ()
    before = position.prefix.rsplit("\n", 1)[-1]
    size = len(position.truth.strip())
    length = f"up to {SHORT}" if size <= SHORT else f"up to {LONG}" if size <= LONG else f"above {LONG}"
    inside = before[-1:].isalnum() or before[-1:] == "_"
    place = "start of a line" if not before.strip() else "in or after a word" if inside else "after a sign or space"
    spoken = position.language or language(path=position.file) or "unknown"
    found = (f"language: {spoken}", f"characters: {length}", f"place: {place}")
    named = (("set", set), ("project", position.project))
    return (*found, *(f"{kind}: {name}" for kind, name in named if name))


def summarise(by_position: tuple[PositionScore, ...], judge: str, temperature: float, seconds: float = 0.0) -> Scores:
    """Return the means over the positions at which something should be written."""
    asked = [score for score in by_position if score.asks]
    judged = [score.judged for score in asked if score.judged is not None]
    return Scores(
        judge=judge,
        temperature=temperature,
        exact=mean([float(score.exact) for score in asked]),
        edit_similarity=mean([score.edit_similarity for score in asked]),
        matching_characters=mean([float(score.matching_characters) for score in asked]),
        judged=mean(judged),
        empty=mean([float(not score.completion.strip()) for score in asked]),
        length=mean([float(len(score.completion)) for score in asked]),
        judge_failures=1 - len(judged) / len(asked) if asked else math.nan,
        seconds=seconds,
        by_position=by_position,
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan
