"""Past acceptance of users and projects, a feature of the estimate of kept text (infra/model/showing.py).

Serving counts the feedback that the replica received, in memory (serving/recording/answers.py). Each request records the shares
used for it, and the estimate is fitted on these.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_REMEMBERED = 20_000
"""Most users and projects."""
LEAST = 10
"""Fewest answered completions of a project for its share, and those of its users, to be known."""
MOST = 400
"""Most answered completions that count; beyond it, the earlier ones count half."""
PRIOR = 10
"""Weight of the project's share in a user's share, in completions."""
Keys = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(slots=True)
class _Count:
    accepted: float = 0.0
    answered: float = 0.0
    halvings: int = 0
    """Times that the earlier completions were halved."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A completion that was counted: its answer, and what it counts in."""

    keys: Keys
    accepted: bool
    counts: tuple[_Count, _Count]
    halvings: tuple[int, int]
    """Of these counts when the completion was counted."""


class PastAcceptance:
    """Counts answered and accepted completions."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, ...], _Count] = OrderedDict()
        """By (project,) and (project, user)."""

    def add(self, project: str, user: str, accepted: bool) -> Counted:
        """Count an answered completion."""
        keys: Keys = ((project,), (project, user))
        counts = (self._count(keys[0], accepted), self._count(keys[1], accepted))
        while len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)
        return Counted(keys, accepted, counts, (counts[0].halvings, counts[1].halvings))

    def remove(self, counted: Counted) -> None:
        """Take a completion out of the counts, with the weight that it has by now: another answer counts, or none."""
        for key, count, halvings in zip(counted.keys, counted.counts, counted.halvings, strict=True):
            if self._counts.get(key) is count:
                weight = 0.5 ** (count.halvings - halvings)
                count.accepted -= weight * counted.accepted
                count.answered -= weight

    def shares(self, project: str, user: str) -> tuple[float | None, float | None]:
        """Return the accepted share of a user's completions in a project, and of all the project's; None if unknown.

        The user's share is shrunk towards the project's, more so the fewer completions the user answered.
        """
        of_project = self._counts.get((project,), _Count())
        if of_project.answered < LEAST:
            return None, None
        share = of_project.accepted / of_project.answered
        own = self._counts.get((project, user), _Count())
        return (own.accepted + PRIOR * share) / (own.answered + PRIOR), share

    def _count(self, key: tuple[str, ...], accepted: bool) -> _Count:
        count = self._counts.pop(key, None) or _Count()
        if count.answered >= MOST:
            count.accepted, count.answered, count.halvings = count.accepted / 2, count.answered / 2, count.halvings + 1
        count.accepted += accepted
        count.answered += 1
        self._counts[key] = count
        return count
