"""Means per request where the answers to some shown completions are missing: the one definition of acceptance, of kept characters
and of every other figure per request that people see.

    mean = (sum of answered requests / answered requests) * (shown requests / requests)

A shown completion without an answer is missing data, not a rejection.
"""

import numpy as np

from infra.records import Rate
from tasks.statistics.ratios import rate

LEAST_USERS = 2
"""Users that an interval needs."""


def per_request(counted: np.ndarray, judged: np.ndarray, visible: np.ndarray, requests: np.ndarray) -> Rate | None:
    """Return a mean per request with its 95 % interval, clustered by user; None for fewer than LEAST_USERS or without an answer.

    Args:
        counted: of each user, the sum over answered requests, [U].
        judged: requests whose answer is known, [U].
        visible: requests that may have shown something, [U].
        requests: all requests, [U].
    """
    met = requests > 0
    if np.count_nonzero(met) < LEAST_USERS or not judged.sum():
        return None
    extended = extend(counted, judged, visible, met.astype(float))
    return rate(extended[met], requests[met])


def extend(counted: np.ndarray, judged: np.ndarray, visible: np.ndarray, counting: np.ndarray) -> np.ndarray:
    """Return each user's sum, extended from answered completions to all shown ones.

    Summed over users it is visible * counted / judged; per request it is (visible per request) * (counted per judged). A user's
    part of it is, up to a constant, the user's influence on this product (the delta method for ratios of clustered sums: Deng,
    Knoblich and Lu 2018, "Applying the Delta Method in Metric Analytics", section 3), so errors over users are right. If
    everything is answered, it is the sum itself; if nothing is, zeros.

    Args:
        counting: weight of each user's requests in the comparison.
    """
    answers = float((counting * judged).sum())
    if not answers:
        return np.zeros_like(counted)
    mean = float((counting * counted).sum()) / answers
    return mean * visible + float((counting * visible).sum()) / answers * (counted - mean * judged)
