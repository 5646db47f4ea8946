"""Past acceptance of users and projects, a feature of the estimate of kept text (infra/model/showing.py).

Serving counts the feedback that the replica received, in memory. Each request records the shares used for it, and the estimate is
fitted on these.
"""

from collections import OrderedDict

MAX_REMEMBERED = 20_000
"""Most users and projects."""
LEAST = 10
"""Fewest answered completions of a project for its share, and those of its users, to be known."""
MOST = 400
"""Most answered completions that count; beyond it, the earlier ones count half."""
PRIOR = 10
"""Weight of the project's share in a user's share, in completions."""


class PastAcceptance:
    """Counts answered and accepted completions."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()
        """Accepted and answered completions, by (project,) and (project, user)."""

    def add(self, project: str, user: str, accepted: bool) -> None:
        """Count an answered completion."""
        for key in ((project,), (project, user)):
            counted, judged = self._counts.pop(key, (0.0, 0.0))
            fade = 0.5 if judged >= MOST else 1.0
            self._counts[key] = counted * fade + accepted, judged * fade + 1
        while len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)

    def shares(self, project: str, user: str) -> tuple[float | None, float | None]:
        """Return the accepted share of a user's completions in a project, and of all the project's; None if unknown.

        The user's share is shrunk towards the project's, more so the fewer completions the user answered.
        """
        accepted, judged = self._counts.get((project,), (0.0, 0.0))
        if judged < LEAST:
            return None, None
        share = accepted / judged
        own, seen = self._counts.get((project, user), (0.0, 0.0))
        return (own + PRIOR * share) / (seen + PRIOR), share
