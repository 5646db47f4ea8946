"""No user has more than a share of a cycle's weight: pure.

A user's weight is the sum of the sizes of the advantages of that user's samples, which is what bounds that user's part of the
policy's gradient. The share of samples is bounded already (tasks/buckets.py); but few samples may weigh as much as many, where
they are the rare ones of a batch. What is above the share is scaled down, by one factor for all samples of the user, so that
their order and sign stay.
"""

from collections import defaultdict
from collections.abc import Sequence

from infra.records import Sample

ROUNDING = 1e-9


def capped(samples: Sequence[Sample], share: float) -> list[Sample]:
    """The samples, with the advantages of users above the share scaled down to it."""
    weights: dict[str, float] = defaultdict(float)
    for sample in samples:
        weights[sample.user] += abs(sample.advantage)
    most = weight_cap(list(weights.values()), share)
    factors = {user: most / weight for user, weight in weights.items() if weight > most}
    return [s.model_copy(update={"advantage": s.advantage * factors[s.user]}) if s.user in factors else s for s in samples]


def weight_cap(weights: Sequence[float], share: float) -> float:
    """The largest cap c with c <= share * sum(min(weight, c)); with fewer users than 1 / share, equal weights for all.

    With the k heaviest users at the cap, c = share * (k c + the rest), so c = share * rest / (1 - k share).
    """
    ordered = sorted((weight for weight in weights if weight > 0), reverse=True)
    allowed = max(share, 1 / max(len(ordered), 1))
    rest = sum(ordered)
    for k, heaviest in enumerate(ordered):
        cap = allowed * rest / (1 - k * allowed)
        if heaviest <= cap * (1 + ROUNDING):  # so it is at the latest for the whole part of 1 / share, where 1 - k share <= share
            return cap
        rest -= heaviest
    return 0.0
