"""An update is PPO over actions at places: here stand reward, advantage and weight of an action. Pure.

A place is where a completion was asked for. The actions of one place are a group:

    served    what was shown there; the server recorded its behaviour policy; rewarded by what the developer did, then and later
    drawn     what the cycle drew from the parent, seen by nobody; rewarded by an acceptance that the cycle's own verdicts give
    silence   the empty text
    written   the settled text, which the developer wrote; nothing sampled it. An empty one is silence

Reward, on one scale (infra.settings.reward):

    R = rejected + (accepted - rejected) * chance * worth      silence: 0; written: accepted
    chance    that a developer takes it: 1 or 0 of a served text with an answer, the fitted chance of a drawn one (acceptance.py)
    worth     2 * kept / (shown + line), in characters: the rest is the edit cost, since what is wrong must be deleted, and what
              is missing be typed

Advantage of a sampled action i, in a group of n:

    A_i = share_i * (R_i - mean of the other n - 1 rewards)

    baseline  leave-one-out (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. 2024, "Back to
              basics", RLOO). Silence and the written text are members. No division by the deviation, which would give places of
              almost equal rewards the largest steps (Liu et al. 2025, "Understanding R1-Zero-like training").
    variance  a group teaches where the rewards of its actions, the written text left out, differ (Yu et al. 2025, "DAPO")
    share     served: 1. drawn: its copies among the group's draws, each of them a member. silence: its probability under the
              parent, which is the part that it would have of many draws; at another temperature than 1 its part of the draws.

The written text has the advantage 1, whatever the others earn: it is not drawn from a policy, so that a baseline would not lower
its variance but weigh the places; weighing them by the miss of the policy lost a third of a point of exact lines. Its unknown
behaviour policy is replaced by a shaped weight, p^q (LUFFY: Yan et al. 2025, "Learning to reason under off-policy guidance", has
p / (p + g); p^q is Zhang and Sabuncu 2018, and the "Tsallis loss continuum", arXiv 2604.25907, 2026). At q = 1 its term is the
exact expected policy gradient of the reward 1 for this text and 0 for all others.

The loss of a place, which tasks/trainer/update/losses.py sums over tokens:

    - surrogate_weight * sum_i w_i min(r_i A_i, clip(r_i) A_i)  -  settled_weight * u * p^q * ln p(written)
    r_i = policy / proximal, w_i = min(proximal / behaviour, importance_bound): decoupled PPO (Hilton et al. 2022, eq. 3)

u and the A_i are capped so that no user, credential or project has more than its share of either sum (weights.py, and
tasks/trainer/update/caps.py for p^q).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from infra.settings.schema import Reward

Kind = Literal["served", "drawn", "silence", "written"]
SILENCE = 0.0
"""Reward of a completion without text to show."""
LEAST_VARIANCE = 1e-4
"""Variance of a group's rewards, above which its actions teach."""


@dataclass(frozen=True)
class Action:
    """A member of a place's group."""

    place: str
    """Id of the request."""
    kind: Kind
    reward: float
    share: float = 1.0
    """Its part of the group's sum; 0: it is a member of the baseline only."""
    blank: bool = False
    """Whether it shows nothing."""
    copies: int = 1
    """Equal draws that it stands for; each is a member of the group."""


def worth(kept: int, shown: int, line: int) -> float:
    """Return the share of two texts' characters that they have in common, 0 to 1.

    Args:
        kept: characters of the shown text that stand in the settled line.
        shown: characters of the shown text.
        line: characters of the settled line.
    """
    kept = min(kept, shown, line)
    return 2 * kept / max(shown + line, 1)


def decide(
    served: Sequence[Action], drawn: Sequence[Action], written: Collection[str], settings: Reward, kinds: Collection[str]
) -> list[float]:
    """Return the advantages of the served actions, and behind them those of the drawn ones.

    Args:
        served: at most one of a place.
        drawn: draws, and the silence of their places.
        written: places whose settled text is known and not empty.
        kinds: those that teach (train.actions); others are members of no group.
    """
    members = [*served, *drawn]
    acting = [action for action in members if _acts(action, settings, kinds)]
    silent = {action.place for action in acting if action.kind == "silence"}
    places = dict.fromkeys(action.place for action in acting)
    others = [Action(place, "written", settings.accepted) for place in places if place in written and "written" in kinds]
    if settings.silence:
        others += [Action(place, "silence", SILENCE, share=0.0) for place in places if place not in silent]
    found = iter(advantages([*acting, *others]))
    return [next(found) if _acts(action, settings, kinds) else 0.0 for action in members]


def _acts(action: Action, settings: Reward, kinds: Collection[str]) -> bool:
    """Return whether a served or drawn action is a member of its group."""
    kind = "served" if action.kind == "served" else "drawn"
    return kind in kinds and (settings.silence or not action.blank)


def advantages(actions: Sequence[Action]) -> list[float]:
    """Return the advantage of each action, 0 for the written texts and for a drawn text alone at its place.

    Served completions at places where nothing else is known are one group: each is compared with the others.
    """
    if not actions:
        return []
    places = np.unique([action.place for action in actions], return_inverse=True)[1]
    rewards, shares, copies = (np.array([getattr(one, name) for one in actions]) for name in ("reward", "share", "copies"))
    served = np.array([action.kind == "served" for action in actions])
    alone = served & (np.bincount(places, copies)[places] == 1)
    groups = np.where(alone, places.max() + 1, places)
    written = np.array([action.kind == "written" for action in actions])
    sizes, sums = np.bincount(groups, copies)[groups], np.bincount(groups, copies * rewards)[groups]
    baselines = (sums - rewards) / np.maximum(sizes - 1, 1)
    teaches = (_variances(groups, rewards, copies * ~written) > LEAST_VARIANCE) & (sizes > 1) & ~written
    return np.where(teaches, shares * (rewards - baselines), 0.0).tolist()


def _variances(groups: np.ndarray, rewards: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the variance of the rewards of each action's group, each as often as it is `counted`."""
    counts = np.maximum(np.bincount(groups, counted), 1)
    means = np.bincount(groups, rewards * counted) / counts
    return (np.bincount(groups, counted * (rewards - means[groups]) ** 2) / counts)[groups]
