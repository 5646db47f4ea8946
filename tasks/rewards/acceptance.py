"""The chance that a developer accepts a text, given the settled text at its position. Pure.

A logistic regression on how much the two texts have in common, fitted on a cycle's judged completions whose settled text is
known. It scores completions that nobody saw. scikit-learn takes a second to import, so it is imported inside the function.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from infra.model.kept_text import common_start, kept_characters
from infra.records import AcceptanceFit
from tasks.labels.shares import codes
from tasks.rewards.scaling import scale

FEATURES = ("kept_share", "right_share", "log_right", "log_wrong", "whole_line", "nothing_wrong", "log_characters")
"""Shares of the shown characters that stand in the settled text, and that are right from the start; the logarithms of the numbers
that are right from the start, and that are not; whether the text is the rest of the line; whether all of it is right; the
logarithm of its length."""
LEAST_EACH = 30
"""Accepted completions, and others, that a fit needs at least."""
FOLDS = 5
"""Parts of the verdicts, each of which is predicted by a fit on the others."""
LEAST_CHANCE = 1e-6
"""Bound of a chance whose logarithm is taken."""


@dataclass(frozen=True)
class Acceptance:
    """A fitted chance of acceptance."""

    weights: np.ndarray
    """[FEATURES], in log-odds."""
    bias: float
    error: AcceptanceFit
    """How well verdicts that it was not fitted on are predicted."""

    def chances(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the chance that each shown text is accepted where the settled text was written; 0 for blank texts."""
        found = 1 / (1 + np.exp(-np.clip(_rows(pairs) @ self.weights + self.bias, -500, 500)))
        return [float(chance) if shown.strip() else 0.0 for chance, (shown, _) in zip(found, pairs, strict=True)]


def verdict_on(outcome: str | None, shown: str, settled: str, whole: bool) -> bool | None:
    """Return whether a developer accepted a shown text, as a verdict to fit on.

    None without an answer, where a part was accepted, and where the text goes on behind a settled text that is not `whole`: what
    stands there is unknown, and would count as wrong.
    """
    beyond = not whole and shown.rstrip().startswith(settled)
    return None if beyond or outcome not in ("accepted", "rejected") else outcome == "accepted"


def features(shown: str, settled: str) -> tuple[float, ...]:
    """Return the features of a shown text and the settled text at its place; blanks at the end of lines do not count."""
    text, line = shown.rstrip(), settled.split("\n", 1)[0].rstrip()
    right, size = common_start(text, settled), max(len(text), 1)
    kept = min(kept_characters(text, settled), len(text)) if text else 0
    flags = bool(text) and text == line, bool(text) and right == len(text)
    return kept / size, right / size, math.log1p(right), math.log1p(len(text) - right), *map(float, flags), math.log1p(len(text))


def fit(pairs: Sequence[tuple[str, str]], accepted: Sequence[bool], weights: Sequence[float] = ()) -> Acceptance | str:
    """Return the chance fitted on judged completions; or why there is none, as a clause.

    It needs LEAST_EACH of either outcome, and predicts verdicts that it was not fitted on better than their mean does, by the
    logarithmic score (Gneiting and Raftery 2007, "Strictly proper scoring rules", section 4).

    Args:
        pairs: the shown and the settled text of each.
        weights: of each verdict; none: all count alike.
    """
    count, taken = len(accepted), sum(accepted)
    if min(taken, count - taken) < LEAST_EACH:
        return f"{taken} of {count} judged completions with a settled text are accepted, expected {LEAST_EACH} or more of either"
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    rows, verdicts, weight = _rows(pairs), np.array(accepted), np.array(weights or [1.0] * count)
    regression, given = LogisticRegression(max_iter=1000), {"sample_weight": weight}
    folds = StratifiedKFold(FOLDS)
    chances = cross_val_predict(regression, rows, verdicts, cv=folds, method="predict_proba", params=given)[:, 1]
    error = _error(verdicts, chances, weight)
    if error.log_loss >= error.base_log_loss:
        return (
            f"the acceptance fitted on {count} judged completions predicts others no better than their mean: log loss "
            f"{error.log_loss:.4g} against {error.base_log_loss:.4g}"
        )
    model = regression.fit(rows, verdicts, weight)
    return Acceptance(model.coef_[0], float(model.intercept_[0]), error)


def capped(judges: Sequence[Mapping[str, str]], shares: Mapping[str, float]) -> Sequence[float]:
    """Return the weights of verdicts by which no group has more than its share of them.

    Where fewer than 1 / share groups judge, a group has at most 2 / groups, as a small team sets its shares
    (infra/docs/how/caps.md). Where the shares cannot hold together, the last ones are left out; the first one holds.

    Args:
        judges: of each verdict the groups, by the kind that `shares` names: user, credential, project.
        shares: the most personal first.
    """
    groups = []
    for name, share in shares.items():
        names = codes(pl.Series([one[name] for one in judges], dtype=pl.String))
        count = int(names.max()) + 1 if len(names) else 1
        groups.append((names, share if count * share >= 1 else min(1.0, 2 / count)))
    while not (weights := scale(np.ones(len(judges)), groups)).all():
        groups.pop()
    return weights.tolist()


def _error(verdicts: np.ndarray, chances: np.ndarray, weight: np.ndarray) -> AcceptanceFit:
    rate = float(np.average(verdicts, weights=weight))
    return AcceptanceFit(
        verdicts=len(verdicts),
        accepted=int(verdicts.sum()),
        predicted=float(chances.sum()),
        brier=float(np.average((chances - verdicts) ** 2, weights=weight)),
        base_brier=rate * (1 - rate),
        log_loss=_log_loss(verdicts, chances, weight),
        base_log_loss=_log_loss(verdicts, np.full(len(verdicts), rate), weight),
    )


def _log_loss(verdicts: np.ndarray, chances: np.ndarray, weight: np.ndarray) -> float:
    bounded = np.clip(chances, LEAST_CHANCE, 1 - LEAST_CHANCE)
    return -float(np.average(np.log(np.where(verdicts, bounded, 1 - bounded)), weights=weight))


def _rows(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    return np.array([features(shown, settled) for shown, settled in pairs]).reshape(len(pairs), len(FEATURES))
