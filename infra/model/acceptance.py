"""How often users and projects accepted before: what the estimate of what is kept reads of the past (infra/model/showing.py).

Serving counts the feedback that the replica got, in memory alone. Each request records the shares that it was decided by, and the
estimate is fitted on these.
"""

from collections import OrderedDict

MAX_REMEMBERED = 20_000
"""Users and projects."""
LEAST = 10
"""Judged completions of a project from which on its share, and those of its users, are known."""
MOST = 400
"""Judged completions that count; beyond it, those so far count half."""
PRIOR = 10
"""Completions that the project's share counts for in a user's."""


class PastAcceptance:
    """Counts judged and accepted completions."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()
        """Accepted and judged completions, of (project,) and of (project, user)."""

    def add(self, project: str, user: str, accepted: bool) -> None:
        """Count a judged completion."""
        for key in ((project,), (project, user)):
            counted, judged = self._counts.pop(key, (0.0, 0.0))
            fade = 0.5 if judged >= MOST else 1.0
            self._counts[key] = counted * fade + accepted, judged * fade + 1
        while len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)

    def shares(self, project: str, user: str) -> tuple[float | None, float | None]:
        """Return the share of completions that a user accepted in a project, and that all in the project did; none if unknown.

        The user's is drawn to the project's, the more so the fewer completions the user judged.
        """
        accepted, judged = self._counts.get((project,), (0.0, 0.0))
        if judged < LEAST:
            return None, None
        share = accepted / judged
        own, seen = self._counts.get((project, user), (0.0, 0.0))
        return (own + PRIOR * share) / (seen + PRIOR), share
