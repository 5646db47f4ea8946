"""Signed rewards and advantages: pure.

A completion is an episode of one action with its reward at the end, undiscounted, so that the Monte-Carlo return of every token
is the reward (Sutton and Barto 2018, "Reinforcement Learning", eq. 3.8 with gamma = 1). There is no critic; the baseline is the
batch's mean (REINFORCE with baseline, eq. 13.11):

    A_i = R_i - mean(R)              normalise off
    A_i = (R_i - mean(R)) / std(R)   normalise on; std of the population, zero where all rewards are equal

A rejection is worth less than nothing, so that showing pays only above a certain chance of an accept (Cursor, "Improving Cursor
Tab with online RL", 2025: +0.75 accepted, -0.25 rejected, 0 nothing shown: above 25 %).
"""

import math
from collections.abc import Sequence

from infra.records import Sample
from infra.settings.schema import Reward


def reward(sample: Sample, settings: Reward) -> float:
    """What a sample was worth. A partial accept earns the accepted share of an accept and the rest of a reject."""
    length = settings.per_character * min(sample.accepted_characters, settings.max_characters)
    match sample.outcome:
        case "accepted":
            return settings.accepted + length
        case "partially_accepted":
            kept = sample.accepted_characters / max(sample.shown_characters, 1)
            return kept * settings.accepted + (1 - kept) * settings.rejected + length
        case "rejected":
            return settings.rejected
        case "nothing":
            return settings.nothing
        case "shown":
            raise AssertionError(f"sample {sample.completion_id}: shown but not judged, which collect never trains on")


def advantages(rewards: Sequence[float], normalise: bool) -> list[float]:
    """Returns minus their mean, and over their standard deviation where asked for."""
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    centred = [r - mean for r in rewards]
    deviation = math.sqrt(math.fsum(c * c for c in centred) / len(rewards))
    if not normalise or deviation < 1e-8:
        return centred
    return [c / deviation for c in centred]


def rewarded(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """The samples with their rewards and advantages."""
    rewards = [reward(sample, settings) for sample in samples]
    worth = zip(samples, rewards, advantages(rewards, settings.normalise), strict=True)
    return [sample.model_copy(update={"reward": r, "advantage": a}) for sample, r, a in worth]
