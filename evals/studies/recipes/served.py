"""What developers do with completions as people are served: the decision to show cuts them or holds them back.

Its estimate is cross-fitted: what one half of the developers wrote decides for the other half.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from evals.studies.recipes.gains import Outcomes
from evals.studies.showing.frontier import Shown
from evals.studies.showing.pauses import CompletedPauses
from infra.model.showing import Estimate, decide
from infra.settings.serving import Sampling, Showing
from tasks.showing.fit import Unfitted, fit

Estimates = tuple[Estimate | None, Estimate | None]
"""Of each half of the developers, the estimate fitted on the places of the other half; None where these are too few: all is
shown then, as serving does."""


def half_of(user: str) -> int:
    """Return the half, 0 or 1, that a developer belongs to."""
    return zlib.crc32(user.encode()) % 2


def cross_fitted(places: CompletedPauses) -> Estimates:
    """Return the estimate for each half of the developers."""
    found: list[Estimate | None] = []
    for half in (0, 1):
        others = [c for p, c in zip(places.pauses, places.completions, strict=True) if half_of(p.developer.name) != half]
        fitted = fit([c for c in others if not np.isnan(c.kept).all()])
        found.append(None if isinstance(fitted, Unfitted) else fitted.estimate)
    return found[0], found[1]


def shown_of(estimates: Estimates, places: CompletedPauses, showing: Showing, sampling: Sampling) -> Shown:
    """Return the number of tokens shown of each completion at the level of requests that name none."""
    shown, price = [], showing.price(showing.level)
    for pause, completion, text in zip(places.pauses, places.completions, places.texts, strict=True):
        estimate, ends = estimates[half_of(pause.developer.name)], completion.ends
        if estimate is None or price is None:
            shown.append(len(ends))
            continue
        chances = estimate.at(completion.place).chances(completion.logprobs, ends)
        shown.append(decide(chances, ends, text, price, sampling.max_tokens).shown)
    return shown


def outcomes_of(places: CompletedPauses, choices: Sequence[Shown]) -> list[Outcomes]:
    """Return, for each choice of the number of tokens shown of each completion, what developers do."""
    tokens = places.outcomes()
    return [Outcomes(tokens.users, *tokens.chosen(shown).T[:2].tolist()) for shown in choices]
