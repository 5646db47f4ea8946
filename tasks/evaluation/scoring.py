"""Scores of several models at the same places, by the same judge. The gate and `tabloop compare` both score here."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.records import HeldOutCompletion
from infra.settings import Settings
from infra.settings.schema import Sampling
from infra.storage.store import ObjectStore
from tasks.evaluation import judge as judges
from tasks.evaluation.judge.calibration import Calibration, calibrate
from tasks.evaluation.models.base import Models, Progress, weights_sha256
from tasks.evaluation.models.completions import Completions, Conditions, PlaceSet, completions_of, drifts_of
from tasks.evaluation.scores import PositionScore, Scores, score_position, summarise


@dataclass(frozen=True)
class ScoredModels:
    """Scores at the same places, in order of the models; the first is the baseline."""

    scores: Mapping[str, Scores]
    """By the model's name."""
    weights: Mapping[str, str]
    """SHA-256 of the weights, by the model's name."""
    sets: Mapping[str, str]
    """SHA-256 of each set, by its name."""
    calibration: Calibration
    """Of the judge, on these places."""
    greedy: Mapping[str, Scores] = field(default_factory=dict)
    """Scores of the likeliest completions, by the model's name, if requested; without the LLM judge."""
    untested: tuple[str, ...] = ()
    """Why tests of benchmarks were not run; empty if they were, or if there are none."""


@dataclass(frozen=True)
class Contestant:
    """A model to score."""

    checkpoint: Path
    sampling: Sampling
    """Sampling settings of its arm."""


def score_models(
    contestants: Mapping[str, Contestant],
    sets: Sequence[PlaceSet],
    settings: Settings,
    models: Models,
    store: ObjectStore | None = None,
    progress: Progress | None = None,
    *,
    left_out: Mapping[str, frozenset[str]] | None = None,
    greedy: bool = False,
) -> ScoredModels:
    """Complete the places of all sets with each model, and score them.

    Args:
        contestants: by name, the baseline first.
        store: where completions and judgements are cached; None: no cache.
        progress: called with the number of places done.
        left_out: names of places, by set, that are completed and not scored; another cycle may score them.
        greedy: score the likeliest completions too.
    """
    without = left_out or {}
    counted = [counting(one, without.get(one.name, frozenset())) for one in sets]
    judge = judges.build(settings.evaluate.judge, store)
    work = _Work(models, settings, tuple(zip(sets, counted, strict=True)), judge, store, progress)
    baseline = next(iter(contestants.values()))
    with ThreadPoolExecutor(len(contestants) if models.together else 1) as pool:
        made = dict(zip(contestants, pool.map(work.complete, contestants.values()), strict=True))
        likeliest = dict(zip(contestants, pool.map(work.score_greedy, contestants.values()), strict=True)) if greedy else {}
    scored = {name: work.score(contestant, baseline, made[name]) for name, contestant in contestants.items()}
    places = [place for one in counted for place in one.places]
    # The same judge, which knows the form of requests that its endpoint takes, and without the cache.
    asked = judge.asked if isinstance(judge, judges.CachedJudge) else judge
    calibration = calibrate(asked, places, settings.evaluate.judge.calibration_places)
    return ScoredModels(
        scores={name: scores for name, (scores, _) in scored.items()},
        weights={name: weights for name, (_, weights) in scored.items()},
        sets={one.name: one.sha256 for one in sets},
        calibration=calibration,
        greedy=likeliest,
    )


@dataclass(frozen=True)
class _Work:
    """Inputs common to the scores of all contestants."""

    models: Models
    settings: Settings
    sets: tuple[tuple[PlaceSet, PlaceSet], ...]
    """Each set with its places that count."""
    judge: judges.Judge
    store: ObjectStore | None
    progress: Progress | None

    def complete(self, contestant: Contestant) -> list[Completions]:
        """Return a model's completions of each set, as it would serve them."""
        evaluation = self.settings.evaluate
        conditions = Conditions(contestant.sampling, self.settings.model, evaluation.seed, evaluation.stop, truths=True)
        return [
            completions_of(self.models, contestant.checkpoint, whole, conditions, self.store, self.progress)
            for whole, _ in self.sets
        ]

    def score(self, contestant: Contestant, baseline: Contestant, completed: Sequence[Completions]) -> tuple[Scores, str]:
        """Return the scores of a model's completions of each set, and the checksum of its weights."""
        rows: list[PositionScore] = []
        seconds, weights = 0.0, ""
        for made, (_, counted) in zip(completed, self.sets, strict=True):
            seconds, weights, kept = seconds + made.seconds, made.weights, of_places(made, counted)
            drifts = self._drifts(contestant, baseline, kept, counted)
            rows += score_rows(counted, kept.rows, self.judge, drifts)
        return summarise(tuple(rows), self.judge.name, contestant.sampling.temperature, seconds), weights

    def score_greedy(self, contestant: Contestant) -> Scores:
        """Return the scores of a model's likeliest completions, by the reference judge."""
        likeliest = contestant.sampling.model_copy(update={"temperature": 0.0})
        conditions = Conditions(likeliest, self.settings.model, 0, self.settings.evaluate.stop)
        judge = judges.ReferenceJudge()
        rows: list[PositionScore] = []
        for whole, counted in self.sets:
            made = completions_of(self.models, contestant.checkpoint, whole, conditions, self.store)
            rows += score_rows(counted, of_places(made, counted).rows, judge)
        return summarise(tuple(rows), judge.name, 0.0)

    def _drifts(self, contestant: Contestant, baseline: Contestant, made: Completions, places: PlaceSet) -> list[float] | None:
        """Return the drift of each completion from the baseline; empty if the settings give drift no margin."""
        if self.settings.evaluate.gate.margins.get("drift") is None:
            return None
        if made.weights == weights_sha256(baseline.checkpoint):
            return [0.0] * len(made.rows)
        folders = (contestant.checkpoint, baseline.checkpoint)
        return drifts_of(self.models, *folders, made, places.places, self.settings.model, contestant.sampling)


def score_rows(
    places: PlaceSet, rows: Sequence[HeldOutCompletion], judge: judges.Judge, drifts: Sequence[float] | None = None
) -> tuple[PositionScore, ...]:
    """Score each completion of a set as it is served; `drifts`: the drift of each completion (drift.py)."""
    pairs = list(zip(places.places, rows, strict=True))
    judged = judge.score([judges.Item(p.prefix, p.suffix, row.text, p.truth) for p, row in pairs])
    moved: Sequence[float | None] = drifts or [None] * len(pairs)
    return tuple(
        score_position(place, row.text, judgement, drift, set=places.name, truth_logprob=row.truth_logprob)
        for (place, row), judgement, drift in zip(pairs, judged, moved, strict=True)
    )


def counting(places: PlaceSet, left_out: frozenset[str]) -> PlaceSet:
    """Return the set of the places that count."""
    return replace(places, places=tuple(place for place in places.places if place.name not in left_out))


def of_places(made: Completions, places: PlaceSet) -> Completions:
    """Return the completions at some places."""
    names = {place.name for place in places.places}
    return replace(made, rows=tuple(row for row in made.rows if row.id in names))
