"""Caps the weight of each user's settled text in an update, if a text's weight depends on its probability. Pure.

The cycle caps a user's settled tokens (tasks/rewards/weights.py). With `settled_exponent` q the trainer multiplies a row's
gradient by p^q, so a user whose text is likely (boilerplate, pastes) would have more of the update than of the tokens. So p is
computed at the update's start. A row's power is p^q, or with `settled_beginnings` the mean factor of its tokens' gradients. Its
size is its tokens times `settled_weight` times its power; sizes are scaled as the tokens are. Each row then has a ceiling for its
power at every step: if all rows of a user are at their ceilings, the user has exactly the share. So a text that becomes likely
during the update, such as a repeated one, gains no weight.

In a large team hardly anybody could reach a share, whatever their text becomes. A sample of rows estimates the average; then only
the rows of users who could reach a share are computed.
"""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from infra.records import Sample
from tasks.rewards.scaling import headroom
from tasks.trainer.job import Job
from tasks.trainer.update.safety import HarmfulUpdate

SAMPLED = 512
"""Rows from which the average power is estimated, before the rows of users who could reach a share are computed."""
MARGIN = 0.8
"""Safety factor on the average estimated from these rows."""
LEAST_POWER = -600.0
"""Least logarithm of a power; the sum of any number of rows of it is a float64 above 0."""


def needed(job: Job) -> bool:
    """Return whether a row's probability changes its weight, and somebody's share of the weight is limited."""
    by_probability = bool(job.settled_exponent or job.settled_min_loss or job.settled_max_loss)
    return job.settled_weight > 0 and by_probability and bool(_limited(job))


def some_rows(samples: Sequence[Sample]) -> list[int]:
    """Return the indices of SAMPLED rows, or of all if there are fewer: always the same, and not predictable by a user."""
    rows = [i for i, sample in enumerate(samples) if sample.settled_token_ids]
    return sorted(random.Random(len(rows)).sample(rows, min(SAMPLED, len(rows))))


def log_power(logprobs: Sequence[float], job: Job) -> float:
    """Return the logarithm of a row's power, from the log-probabilities of its tokens; minus infinity outside the band."""
    count = len(logprobs)
    if not job.settled_min_loss <= -math.fsum(logprobs) / count <= (job.settled_max_loss or math.inf):
        return -math.inf
    powers = np.exp(job.settled_exponent * np.cumsum(np.asarray(logprobs, np.float64)))
    share = job.settled_beginnings
    # The beginning of s tokens counts at each of them.
    mean = share * float(powers @ np.arange(1, count + 1)) / count**2 + (1 - share) * float(powers[-1])
    return max(math.log(mean), LEAST_POWER) if mean else LEAST_POWER


def within_reach(samples: Sequence[Sample], some: Mapping[int, Sequence[float]], job: Job) -> tuple[list[int], float]:
    """Return the indices of the rows whose group could exceed a share if all of its text became certain, and the typical power
    of the others, which need no ceiling.

    The others alone count in the mean and in the sum that a share is of: who could exceed it is cut down.

    Args:
        some: log-probabilities of the settled tokens of `some_rows` at the update's start, by the sample's index.
    """
    rows = [i for i, sample in enumerate(samples) if sample.settled_token_ids]
    most = np.array([len(samples[i].settled_token_ids) * samples[i].settled_weight for i in rows])
    groups = [(_codes([getattr(samples[i], name) for i in rows]), share) for name, share in _limited(job).items()]
    # Rows outside the band get a ceiling of their own.
    reach = np.full(len(rows), bool(job.settled_min_loss or job.settled_max_loss))
    while True:
        others = [i for i, reaches in zip(rows, reach, strict=True) if not reaches]
        typical = _typical_power(samples, {i: some[i] for i in others if i in some}, job)
        least, wider = typical * float(most[~reach].sum()), reach.copy()
        for codes, share in groups:
            wider |= (np.bincount(codes, most) > share * least)[codes]
        if (wider == reach).all():
            return [i for i, reaches in zip(rows, reach, strict=True) if reaches], typical
        reach = wider


def _typical_power(samples: Sequence[Sample], some: Mapping[int, Sequence[float]], job: Job) -> float:
    """Return the mean power at the update's start, by the weight of the rows and less MARGIN; 0 without any weight."""
    sizes = np.array([len(values) * samples[i].settled_weight for i, values in some.items()])
    powers = np.exp([log_power(values, job) for values in some.values()])
    return MARGIN * float((sizes * powers).sum() / sizes.sum()) if sizes.any() else 0.0


def log_powers(samples: Sequence[Sample], known: Mapping[int, Sequence[float]], typical: float, job: Job) -> dict[int, float]:
    """Return the logarithm of the power of each row with a settled text, by the sample's index; `typical` where unknown."""
    computed = {i: log_power(values, job) for i, values in known.items()}
    others = [i for i, sample in enumerate(samples) if sample.settled_token_ids and i not in known]
    return computed | dict.fromkeys(others, math.log(typical) if typical else LEAST_POWER)


def settled_ceilings(samples: Sequence[Sample], powers: Mapping[int, float], job: Job) -> dict[int, float]:
    """Return the logarithm of each row's ceiling, by the sample's index; minus infinity for a row outside the band at the start.

    Args:
        powers: logarithms at the update's start (log_powers).

    Raises:
        HarmfulUpdate: fewer groups have a weight than the shares ask for.
    """
    indices = sorted(powers)
    tokens = np.array([len(samples[i].settled_token_ids) * samples[i].settled_weight for i in indices])
    logs = np.array([powers[i] for i in indices])
    sizes = tokens * np.exp(logs)
    groups = [(_codes([getattr(samples[i], name) for i in indices]), share) for name, share in _limited(job).items()]
    factors = headroom(sizes, groups)
    if sizes.any() and not (sizes * factors).any():
        heavy = [samples[i] for i, size in zip(indices, sizes, strict=True) if size]
        have = ", ".join(f"{len({getattr(sample, name) for sample in heavy})} {name}s" for name in _limited(job))
        raise HarmfulUpdate(
            f"weight_shares = {job.weight_shares}: {have} have a settled text that is trained on, expected at least 1 / share of "
            "each; wait for more users, or set the shares by infra/docs/how/caps.md"
        )
    with np.errstate(divide="ignore"):
        ceilings = logs + np.log(factors)
    return dict(zip(indices, ceilings.tolist(), strict=True))


def _limited(job: Job) -> dict[str, float]:
    """Return the shares that limit anybody: with a share of 1, one project may have all."""
    return {name: share for name, share in job.weight_shares.items() if share < 1}


def _codes(names: Sequence[str]) -> np.ndarray:
    """Return a number from 0 for each name, the same for equal names."""
    return np.unique(np.array(names, dtype=str), return_inverse=True)[1]
