"""Error levels of several comparisons: the correlated metrics of one test. Pure."""

import numpy as np
from scipy.special import ndtr, ndtri

POINTS = 1021
"""Points at which the integral over the other metrics is taken."""
STEPS = 24
"""Halvings in the search of the levels."""


def joint_levels(influences: np.ndarray, alpha: float, weights: np.ndarray) -> np.ndarray:
    """Return the two-sided levels of several estimates, [M], of which one suffices; all together have level alpha.

    They are in the ratio of the weights, and as high as P(any z_m > c_m) = alpha / 2 allows, for z of the estimates' correlation
    and c_m the critical value of level m (max-t: Hothorn, Bretz and Westfall 2008, "Simultaneous inference in general parametric
    models", section 3; with correlations from influences: Pipper, Ritz and Bisgaard 2012, "A versatile method for confirmatory
    evaluation of the effects of a covariate in multiple models", section 3; weights: Genovese, Roeder and Wasserman 2006, "False
    discovery control with p-value weighting"). They lie between the weights' part of alpha (Bonferroni) and alpha.

    Args:
        influences: by how much each user moves each estimate in its good direction, [M, U].
        weights: share of each in alpha, [M], 1 in all.
    """
    norms = np.sqrt(np.square(influences).sum(axis=1))
    varying = (norms > 0) & (weights > 0)
    if varying.sum() < 2:
        return alpha * weights
    scaled = influences[varying] / norms[varying][:, None]
    factor = np.linalg.cholesky(np.clip(scaled @ scaled.T, -1, 1) + 1e-9 * np.eye(len(scaled)))
    points, low, high = lattice(len(scaled) - 1), 1.0, 1.0 / float(weights[varying].max())
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = all_below(factor, -ndtri(middle * weights[varying] * alpha / 2), points)
        low, high = (middle, high) if below > 1 - alpha / 2 else (low, middle)
    return alpha * weights * low


def all_below(factor: np.ndarray, bounds: np.ndarray, points: np.ndarray) -> float:
    """Return the chance that all components of a normal vector lie below their bounds (Genz 1992, "Numerical computation of
    multivariate normal probabilities", section 3).

    Args:
        factor: Cholesky factor of its correlation, [M, M].
        bounds: [M].
        points: points of the unit cube, [N, M - 1].
    """
    chance = np.full(len(points), float(ndtr(bounds[0] / factor[0, 0])))
    whole, drawn = chance.copy(), np.zeros((len(points), len(factor)))
    for row in range(1, len(factor)):
        drawn[:, row - 1] = ndtri(np.clip(points[:, row - 1] * chance, 1e-300, 1 - 1e-16))
        chance = ndtr((bounds[row] - drawn[:, :row] @ factor[row, :row]) / factor[row, row])
        whole *= chance
    return float(whole.mean())


def lattice(dimensions: int) -> np.ndarray:
    """Return points that fill the unit cube evenly, the same every time, [POINTS, dimensions]: a Kronecker sequence with the
    roots of primes (Richtmyer 1951), folded to be periodic."""
    primes = np.array([2.0, 3, 5, 7, 11, 13, 17, 19])[:dimensions]
    return np.abs(2 * np.modf(np.outer(np.arange(1, POINTS + 1), np.sqrt(primes)))[0] - 1)
