"""The chance that a developer accepts a text, given the settled text at its position. Pure.

A logistic regression on how much the two texts have in common, fitted on a cycle's judged completions whose settled text is
known. It scores completions that nobody saw. scikit-learn takes a second to import, so it is imported inside the function.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.model.kept_text import kept_characters

FEATURES = ("kept_share", "right_share", "log_right", "whole_line", "nothing_wrong", "log_characters")
"""Shares of the shown characters that stand in the settled text, and that are right from the start; the logarithm of the latter's
number; whether the text is the rest of the line; whether all of it is right; the logarithm of its length."""
LEAST_EACH = 30
"""Accepted completions, and others, that a fit needs at least."""


@dataclass(frozen=True)
class Acceptance:
    """A fitted chance of acceptance."""

    weights: np.ndarray
    """[FEATURES], in log-odds."""
    bias: float
    labels: int
    """Judged completions that it was fitted on."""

    def chances(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the chance that each shown text is accepted where the settled text was written; 0 for blank texts."""
        rows = np.array([features(shown, settled) for shown, settled in pairs]).reshape(len(pairs), len(FEATURES))
        found = 1 / (1 + np.exp(-np.clip(rows @ self.weights + self.bias, -500, 500)))
        return [float(chance) if shown.strip() else 0.0 for chance, (shown, _) in zip(found, pairs, strict=True)]


def features(shown: str, settled: str) -> tuple[float, ...]:
    """Return the features of a shown text and the settled text at its place; blanks at the end of lines do not count."""
    text, line = shown.rstrip(), settled.split("\n", 1)[0].rstrip()
    right, size = common_beginning(text, settled), max(len(text), 1)
    kept = min(kept_characters(text, settled), len(text)) if text else 0
    flags = bool(text) and text == line, bool(text) and right == len(text)
    return kept / size, right / size, math.log1p(right), *map(float, flags), math.log1p(len(text))


def common_beginning(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def fit(pairs: Sequence[tuple[str, str]], accepted: Sequence[bool]) -> Acceptance | None:
    """Return the chance fitted on judged completions, or None where either outcome is too rare.

    Args:
        pairs: the shown and the settled text of each.
    """
    from sklearn.linear_model import LogisticRegression

    if min(sum(accepted), len(accepted) - sum(accepted)) < LEAST_EACH:
        return None
    rows = np.array([features(shown, settled) for shown, settled in pairs])
    model = LogisticRegression(max_iter=1000).fit(rows, np.array(accepted))
    return Acceptance(model.coef_[0], float(model.intercept_[0]), len(accepted))
