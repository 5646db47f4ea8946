"""Paired differences of two models at the same places, with intervals. Places of one file share its style, so the file is the
unit.

    N places, F files, K columns (one per measure and slice), R resamples
    d_i, w_i    difference at place i, candidate minus champion, and its weight; the estimate is sum(d) / sum(w)

A mean has a paired bootstrap by file (Koehn 2004, "Statistical significance tests for machine translation evaluation"; Field and
Welsh 2007 for clusters), at quantiles corrected for skew (Efron 1987, "Better bootstrap confidence intervals": BCa) and
widened for few files as Student's t is (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3). Files of
unequal size count as fewer (Carter, Schnepel and Steigerwald 2017, "Asymptotic behavior of a t-test robust to cluster
heterogeneity", the effective number of clusters); of a few, Student's t of the files' influences takes the bootstrap's place.
Fewer than LEAST_FILES give no bound.

A rate (d is -1, 0 or 1) has the score interval of paired proportions (Tango 1998, "Equivalence test and confidence interval for
the difference in proportions for the paired-sample design"), which keeps its level if few places or none differ. Its counts are
divided by the design effect of the files (Rao and Scott 1992, "A simple method for the analysis of clustered binary data").
McNemar's exact test decides whether a rate differs at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, ndtr, ndtri, stdtrit  # scipy.stats gives the same, slowly

SEED = 0
"""Seed of the resamples: the same scores give the same verdict."""
RESAMPLES = 4000
LEAST_FILES = 5
"""Fewest effective files that give a bound. Of two, a bootstrap lets a quarter of the losses of one margin through."""
STUDENT_BELOW = 20
"""Effective files below which Student's t replaces the bootstrap, whose tails come from too few files."""


@dataclass(frozen=True, eq=False)
class Column:
    """The values that are compared at each place."""

    difference: np.ndarray
    """[N], candidate minus champion."""
    weight: np.ndarray
    """[N], 1; of a relative change, the champion's value."""
    known: np.ndarray
    """[N], whether the place counts."""
    rate: bool = False
    """Whether each difference is -1, 0 or 1 of a place."""


@dataclass(frozen=True)
class Levels:
    """One-sided error levels of the two bounds on each side."""

    bound: float
    """Of `low` and `high`."""
    sure: float
    """Of `surely_low` and `surely_high`, which are corrected for the number of comparisons."""


@dataclass(frozen=True)
class Difference:
    """Candidate minus champion. Bounds are one-sided; infinite if there are too few files."""

    estimate: float
    low: float
    high: float
    surely_low: float
    """Above 0: the candidate surely has more."""
    surely_high: float
    """Below 0: the candidate surely has less."""
    places: int
    files: int


def differences(columns: Sequence[Column], files: Sequence[str] | np.ndarray, levels: Levels) -> list[Difference]:
    """Return the difference of each column; `files` names the file of each place."""
    number = np.unique(np.asarray(files), return_inverse=True)[1]
    sums = FileSums.of(columns, number)
    resampled = sums.resample()  # R K
    return [
        _unknown(sums, k)
        if sums.effective_files(k) < LEAST_FILES
        else _rate(column, sums, k, levels)
        if column.rate
        else _mean(resampled[:, k], sums, k, levels)
        for k, column in enumerate(columns)
    ]


@dataclass(frozen=True, eq=False)
class FileSums:
    """Sums over the places of each file."""

    difference: np.ndarray
    """[F, K]"""
    weight: np.ndarray
    """[F, K]"""
    places: np.ndarray
    """[F, K], number of places that count."""

    @classmethod
    def of(cls, columns: Sequence[Column], number: np.ndarray) -> "FileSums":
        """Add up columns by the number of each place's file, [N]."""
        count = int(number.max()) + 1 if len(number) else 0

        def add(values: list[np.ndarray]) -> np.ndarray:
            return np.column_stack([np.bincount(number, v, count) for v in values]) if values else np.zeros((count, 0))

        return cls(
            add([np.where(c.known, c.difference, 0.0) for c in columns]),
            add([np.where(c.known, c.weight, 0.0) for c in columns]),
            add([c.known.astype(float) for c in columns]),
        )

    @property
    def estimates(self) -> np.ndarray:
        """sum(d) / sum(w), [K]; NaN without weight."""
        return _divide(self.difference.sum(0), self.weight.sum(0))

    def resample(self) -> np.ndarray:
        """Return the estimates of samples of as many files, drawn with replacement, [R, K]."""
        files = len(self.difference)
        if not files:
            return np.full((1, self.difference.shape[1]), math.nan)
        drawn = times_drawn(files)
        return _divide(drawn @ self.difference, drawn @ self.weight)

    def influence(self, column: int) -> np.ndarray:
        """Return each file's influence on the estimate, times the sum of the weights, [F]."""
        return self.difference[:, column] - self.estimates[column] * self.weight[:, column]

    def skew(self, column: int) -> float:
        """Return the acceleration of Efron 1987 (its constant a) from the files' influences; 0 where nothing differs."""
        influence = self.influence(column)
        scale = float(np.square(influence).sum()) ** 1.5
        return float((influence**3).sum()) / (6 * scale) if scale > 0 else 0.0

    def files(self, column: int) -> int:
        """Return the number of files with a place that counts."""
        return int((self.places[:, column] > 0).sum())

    def effective_files(self, column: int) -> float:
        """Return the effective number of files by their places that count."""
        return effective(self.places[:, column])


def effective(places: np.ndarray) -> float:
    """Return the effective number of files with these numbers n of places, (sum n)^2 / sum n^2; 0 without places."""
    return float(places.sum() ** 2 / np.square(places).sum()) if places.any() else 0.0


@lru_cache(maxsize=16)
def times_drawn(files: int) -> np.ndarray:
    """Return how often each file is drawn in each resample, [R, F]; the same for every comparison of this number of files."""
    return np.random.default_rng(SEED).multinomial(files, np.full(files, 1 / files), RESAMPLES).astype(float)


def _mean(resampled: np.ndarray, sums: FileSums, column: int, levels: Levels) -> Difference:
    estimate, files = float(sums.estimates[column]), sums.files(column)
    known = resampled[np.isfinite(resampled)]
    if not len(known):
        return _unknown(sums, column)
    skew, effective = sums.skew(column), sums.effective_files(column)
    below = float(np.mean(known < estimate) + np.mean(known == estimate) / 2)
    if effective < STUDENT_BELOW:
        return _student(estimate, effective, sums, column, levels)
    errors = [sign * widened(level, effective) for level in (levels.bound, levels.sure) for sign in (-1, 1)]
    shares = [corrected(z, below, skew) for z in errors]
    low, high, surely_low, surely_high = np.quantile(known, shares).tolist()
    return Difference(estimate, low, high, surely_low, surely_high, int(sums.places[:, column].sum()), files)


def _student(estimate: float, effective: float, sums: FileSums, column: int, levels: Levels) -> Difference:
    """Return Student's bounds of a difference, with the variance between files."""
    influence, files = sums.influence(column), sums.files(column)
    error = math.sqrt(files / (files - 1) * float(np.square(influence).sum())) / float(sums.weight[:, column].sum())
    bound, sure = (-float(stdtrit(effective - 1, level)) * error for level in (levels.bound, levels.sure))
    places = int(sums.places[:, column].sum())
    return Difference(estimate, estimate - bound, estimate + bound, estimate - sure, estimate + sure, places, files)


def widened(level: float, files: float) -> float:
    """Return the normal quantile at which a bootstrap over so few files has this error level (Hesterberg 2015, section 5.3)."""
    return math.sqrt(files / (files - 1)) * -float(stdtrit(files - 1, level))


def corrected(z: float, below: float, skew: float) -> float:
    """Return the share of the resamples at a normal quantile (BCa of Efron 1987).

    Args:
        below: share of the resamples below the estimate.
        skew: the acceleration.
    """
    bias = float(ndtri(min(max(below, 1e-9), 1 - 1e-9)))
    return float(ndtr(bias + (bias + z) / max(1 - skew * (bias + z), 1e-9)))


def _rate(column: Column, sums: FileSums, k: int, levels: Levels) -> Difference:
    """Return the difference of two shares of the same places."""
    n = float(column.known.sum())
    more, less = (float((column.known & (sign * column.difference > 0)).sum()) for sign in (1, -1))
    estimate = (more - less) / n
    effect = design_effect(sums, k, estimate, (more + less) / n)
    more, less, size = more / effect, less / effect, n / effect
    surely_low, surely_high = (tango(more, less, size, levels.sure, side) for side in (-1, 1))
    # The score interval is an approximation, so McNemar's exact test must confirm a difference.
    if mcnemar(more, less) > levels.sure:
        surely_low = min(surely_low, 0.0)
    if mcnemar(less, more) > levels.sure:
        surely_high = max(surely_high, 0.0)
    low, high = (tango(more, less, size, levels.bound, side) for side in (-1, 1))
    return Difference(estimate, low, high, surely_low, surely_high, int(n), sums.files(k))


def design_effect(sums: FileSums, k: int, estimate: float, discordant: float) -> float:
    """Return the variance of a mean difference with files as units over that with places as units; at least 1."""
    places = sums.places[:, k].sum()
    files = sums.files(k)
    by_place = (discordant - estimate**2) * places
    by_file = files / (files - 1) * np.square(sums.difference[:, k] - estimate * sums.places[:, k]).sum()
    return max(1.0, float(by_file / by_place)) if by_place > 0 else 1.0


def tango(more: float, less: float, n: float, level: float, side: int) -> float:
    """Return a one-sided bound of the difference of paired proportions, (more - less) / n (Tango 1998, eq. 8).

    Args:
        more: places at which only the candidate has it.
        less: places at which only the champion has it.
        side: -1 for the lower bound, 1 for the upper one.
    """
    quantile, estimate, edge = -float(ndtri(level)), (more - less) / n, side * (1 - 1e-9)

    def excess(delta: float) -> float:
        """The score statistic of the hypothesis that the difference is delta, beyond the quantile."""
        a, b, c = 2 * n, (2 * n - more + less) * delta - more - less, -less * delta * (1 - delta)
        rate = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)  # of `less`, the likeliest with this difference
        variance = n * (2 * rate + delta * (1 - delta))
        return (more - less - n * delta) / math.sqrt(max(variance, 1e-300)) + side * quantile

    if side * estimate >= abs(edge) or side * excess(edge) >= 0:
        return float(side)
    return float(brentq(excess, estimate, edge, xtol=1e-9))


def mcnemar(more: float, less: float) -> float:
    """Return the chance of at least `more` of the places that differ, if either model were as likely to have it: McNemar's exact
    test, one-sided (Fagerland, Lydersen and Laake 2013, section 3), with the binomial tail as an incomplete beta function."""
    return float(betainc(more, less + 1, 0.5)) if more > 0 else 1.0


def _unknown(sums: FileSums, k: int) -> Difference:
    """Return the difference for too few files, with infinite bounds."""
    low, high = -math.inf, math.inf
    return Difference(float(sums.estimates[k]), low, high, low, high, int(sums.places[:, k].sum()), sums.files(k))


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full_like(numerator, math.nan), where=denominator > 0)
