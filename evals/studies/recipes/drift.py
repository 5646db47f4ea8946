"""Whether a model drifts towards its own text: a probe of its completions that no training sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.developers import editor
from evals.developers.alternatives import end_of_lines
from evals.developers.plausible import quality
from evals.studies.recipes.stream import Stream
from evals.studies.showing.rules import CompletedPauses


@dataclass(frozen=True)
class Drift:
    """A model's completions at some places, all of them shown."""

    quality: float
    """Mean hidden quality: what a shown text has in common with the author's, 0 to 1 (evals/developers/plausible.py)."""
    variety: float
    """Distinct texts per shown text."""
    length: float
    """Mean characters of a shown text."""
    agreement: float
    """Chance that two completions of the same place are the same, as sampled: the mean probability of a completion."""

    @classmethod
    def of(cls, places: CompletedPauses) -> "Drift":
        """Return the probe of completions; NaN where nothing is shown."""
        shown, qualities = [], []
        for pause, completion in zip(places.pauses, places.completions, strict=True):
            seen, truth = editor.shown_text(completion.text, pause.prefix, pause.suffix), pause.position.truth
            if seen:
                shown.append(seen)
                qualities.append(quality(seen, truth[: end_of_lines(truth, seen.rstrip().count("\n") + 1)]))
        chances = [float(np.exp(np.sum(completion.logprobs))) for completion in places.completions]
        return cls(
            mean(qualities), len({*shown}) / len(shown) if shown else float("nan"), mean([*map(len, shown)]), mean(chances)
        )


def own_share(stream: Stream) -> float:
    """Return the share of the settled texts of a cycle that the model wrote: they begin with an accepted text."""
    known = [one for one in stream.requests if one.settled is not None]
    own = [one.outcome == "accepted" and one.settled is not None and one.settled.startswith(one.shown.rstrip()) for one in known]
    return mean([*map(float, own)])


def standing_share(stream: Stream) -> float:
    """Return the share of the requests at which an accepted text stands in place of the author's."""
    return mean([float(one.stands) for one in stream.requests])


def accepted_quality(stream: Stream) -> float:
    """Return the mean hidden quality of the accepted texts of a cycle."""
    return mean([one.quality for one in stream.requests if one.quality is not None])


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values."""
    return float(np.mean(values)) if values else float("nan")
