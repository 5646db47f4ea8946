"""Calibration of a judge: it scores true and corrupted texts at the same places, and must separate them.

T, C    scores of the N true and corrupted texts; AUC = P(T > C) + P(T = C) / 2 over all pairs (Mann-Whitney)
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.judge.base import AWAY, REFUSED, Failed, Item, Judge, Scored
from tasks.evaluation.positions import Position

MIN_AUC = 0.8
"""Minimum of the judge's area under the ROC curve, true against corrupted texts, by the lower bound of its 95 % interval; below
it the judge's scores do not count."""
SEED = 0
RESAMPLES = 2000
LEVEL = 0.95
WORD = re.compile(r"[A-Za-z_]\w+")


@dataclass(frozen=True)
class Calibration:
    """How well a judge separates true from corrupted texts."""

    judge: str
    auc: float | None
    """Area under the ROC curve, 1 for perfect separation, 0.5 for none; None if the judge scored too few."""
    low: float | None
    """Lower bound of its 95 % interval, by a bootstrap over places."""
    high: float | None
    places: int
    """Places at which the judge scored both texts."""
    failures: int
    """Places at which it failed on either text."""
    counts: bool
    """Whether the judge's scores count."""
    reason: str
    away: int = 0
    """Places among the failures at which the judge did not answer at all."""
    refused: int = 0
    """Places among the failures at which it refused the request."""
    words: str = ""
    """Reason of the first of its failures, with the judge's own words; empty without failures."""


def calibrate(judge: Judge, places: Sequence[Position], count: int) -> Calibration:
    """Ask a judge about true and corrupted texts at `count` of the places, or at all if there are fewer."""
    asked = [place for place in places if place.asks]
    chosen = random.Random(SEED).sample(asked, min(count, len(asked)))
    wrong = [corrupt(place, chosen[number - 1], number) for number, place in enumerate(chosen)]
    true = judge.score([Item(p.prefix, p.suffix, p.truth, p.truth) for p in chosen])
    corrupted = judge.score([Item(p.prefix, p.suffix, text, p.truth) for p, text in zip(chosen, wrong, strict=True)])
    pairs = [(t.score, c.score) for t, c in zip(true, corrupted, strict=True) if isinstance(t, Scored) and isinstance(c, Scored)]
    failures = len(chosen) - len(pairs)
    failed = [next((one for one in both if isinstance(one, Failed)), None) for both in zip(true, corrupted, strict=True)]
    away, refused, words = causes([one for one in failed if one])
    if len(pairs) < 2:
        reason = f"{failures} of {len(chosen)} places failed" + (f": {words}" if words else "")
        return Calibration(judge.name, None, None, None, len(pairs), failures, False, reason, away, refused, words)
    auc, low, high = area(*(np.array(scores) for scores in zip(*pairs, strict=True)))
    reason = f"AUC {auc:.3f} [{low:.3f}, {high:.3f}] at {len(pairs)} places; a judge that counts has {MIN_AUC:g} or more"
    return Calibration(judge.name, auc, low, high, len(pairs), failures, low >= MIN_AUC, reason, away, refused, words)


def causes(failed: Sequence[Failed]) -> tuple[int, int, str]:
    """Return how many places failed since the judge was away, and since it refused, and the reason of the first.

    A place at which it was not asked any more failed for the most frequent cause.
    """
    asked = [one for one in failed if one.kind != "circuit_open"]
    away, refused = (sum(one.kind in kinds for one in asked) for kinds in (AWAY, REFUSED))
    unasked = len(failed) - len(asked)
    if away > max(refused, len(asked) - away - refused):
        away += unasked
    elif refused > len(asked) - away - refused:
        refused += unasked
    first = next((one for one in asked if one.kind in (REFUSED if refused >= away and refused else AWAY)), None)
    return away, refused, (first or failed[0]).detail if failed else ""


def corrupt(place: Position, other: Position, number: int) -> str:
    """Return a wrong text: another place's, half of the true one, or the true one with a word of the code before it.

    If a corruption does not change the true text, a character that does not belong there is added.
    """
    truth = place.truth
    match number % 3:
        case 0:
            text = other.truth
        case 1:
            text = truth[: len(truth) // 2]
        case _:
            words = [word for word in WORD.findall(place.prefix) if word not in truth]
            text = WORD.sub(words[-1], truth, count=1) if words else truth
    return text if text.strip() != truth.strip() else f"{truth} ?"


def area(true: np.ndarray, corrupted: np.ndarray) -> tuple[float, float, float]:
    """Return the AUC with its interval by a bootstrap over places; true and corrupted [N] are of the same places."""
    above = (true[:, None] > corrupted) + 0.5 * (true[:, None] == corrupted)  # N N
    n = len(true)
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), RESAMPLES) / n  # R N
    resampled = np.einsum("ri,ij,rj->r", drawn, above, drawn, optimize=True)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(above.mean()), float(low), float(high)
