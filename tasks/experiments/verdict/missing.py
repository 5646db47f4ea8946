"""The totals of a test if the completions without an answer were answered: all of them rejected, or all of them accepted.

The comparison extends each arm's answers to all that it showed, which is right where an answer is lost by chance. A fault that
loses rejections on the challenger's arm alone, or accepts on the champion's, makes an equal challenger look better. With a
rejection for every missing answer, the first fault changes nothing; with an accept for each, the second changes nothing (ICA-0
and ICA-1 of Higgins, White and Wood 2008, "Imputation methods for missing outcome data in meta-analysis of clinical trials").
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tasks.experiments.counting.totals import ARMS, ArmTotals, Sums

ALPHA = 0.2
"""Least two-sided error level of a comparison with the missing answers filled in. Filling shrinks every true gain by the share
that is missing, and which answers are missing is chance: at half of this level, a crossover of 60 users loses a tenth of its
power; at this one, nothing is lost (measurements.md, A/B tests)."""


def filled(totals: ArmTotals) -> Iterator[tuple[str, ArmTotals]]:
    """Yield what the missing answers are taken for, and the totals with them; nothing where every answer is known.

    Users without any answer stay as they are: their editor reports nothing, on either arm.
    """
    reports = np.sum([totals.during[arm]["judged"] for arm in ARMS], axis=0) > 0
    missing = {arm: np.where(reports, _unanswered(totals.during[arm]), 0.0) for arm in ARMS}
    if not any(counts.any() for counts in missing.values()):
        return
    accepts, characters = (sum(float(totals.during[arm][name].sum()) for arm in ARMS) for name in ("accepted", "characters"))
    of_one = characters / accepts if accepts else 0.0
    for words, each in (("rejections", {"annoyed": 1.0}), ("accepts", {"accepted": 1.0, "characters": of_one})):
        yield words, replace(totals, during={arm: _with(totals.during[arm], missing[arm], each) for arm in ARMS})


def _unanswered(sums: Sums) -> np.ndarray:
    return np.maximum(sums["visible"] - sums["judged"], 0.0)


def _with(sums: Sums, answers: np.ndarray, each: dict[str, float]) -> Sums:
    """Return a user's sums with more answers, [U], each of these values."""
    return {**sums, "judged": sums["judged"] + answers, **{name: sums[name] + value * answers for name, value in each.items()}}
