"""The totals of a test with the answers that one arm lacks and the other has: all of them rejections, or all of them accepts.

The comparison extends each arm's answers to all that it showed, which is right where an answer is lost by chance. A fault that
loses rejections on the challenger's arm alone, or accepts on the champion's, makes an equal challenger look better. With a
rejection for every answer that an arm lacks, the first fault changes nothing; with an accept for each, the second changes nothing
(ICA-0 and ICA-1 of Higgins, White and Wood 2008, "Imputation methods for missing outcome data in meta-analysis of clinical
trials").

Some editors leave more out than others, on either arm, and chance gives an arm more of their users. So an arm lacks the answers
that are missing above the share that is usual for the client and its way to report, over both arms (`unanswered` in
counting/metrics.py); an arm that has more than usual is corrected the other way.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tasks.experiments.counting.totals import ARMS, ArmTotals, Sums

ALPHA = 0.2
"""Least two-sided error level of a comparison with the answers filled in: chance, too, leaves one arm with fewer answers
(measurements.md, A/B tests)."""


def filled(totals: ArmTotals) -> Iterator[tuple[str, ArmTotals]]:
    """Yield what the answers that an arm lacks are taken for, and the totals with them; nothing where no arm lacks any."""
    if not any(totals.during[arm]["unanswered"].any() for arm in ARMS):
        return
    accepts, characters = (sum(float(totals.during[arm][name].sum()) for arm in ARMS) for name in ("accepted", "characters"))
    of_one = characters / accepts if accepts else 0.0
    for words, each in (("rejections", {"annoyed": 1.0}), ("accepts", {"accepted": 1.0, "characters": of_one})):
        during = {arm: _with(totals.during[arm], each) for arm in ARMS}
        yield words, replace(totals, during=during, before=_with(totals.before, each))


def _with(sums: Sums, each: dict[str, float]) -> dict[str, np.ndarray]:
    """Return a user's sums with the answers that are lacking, [U], each of these values."""
    answers = sums["unanswered"]
    return {**sums, "judged": sums["judged"] + answers, **{name: sums[name] + value * answers for name, value in each.items()}}
