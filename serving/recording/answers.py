"""Counts what became of completions for the past acceptance (infra/model/past_acceptance.py), by the rules of labels.

A completion counts once, by the strongest of its events that is no cache hit (infra/model/verdicts.py); one that nobody judged
does not count. Nor do completions whose labels stand for something else: those sampled at the exploring temperature, pinned to a
version, and of users who opted out. A completion that an editor does not report (tasks/labels/unreported.py) has no event, so it
does not count either. An event whose completion this replica does not remember, since it began after it or another one served it,
counts as that of a completion of its own.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from infra.model.line_ends import normal
from infra.model.past_acceptance import Counted, PastAcceptance
from infra.model.verdicts import STRENGTH, is_accepted, strength
from infra.records import Feedback, Outcome
from serving.recording.served import Served, ServedRequest

MOST = 20_000
"""Impressions, and answered completions, that are remembered."""


@dataclass(slots=True)
class _Impression:
    """A completion as it was shown once, by all of its events."""

    began: float
    """Time of its first event."""
    strongest: int = 0
    cache_hit: bool = False
    completion: Hashable = None
    """Key in Answers._completions; None before one is known."""


@dataclass(slots=True)
class _Answered:
    impressions: dict[Hashable, _Impression] = field(default_factory=dict)
    counted: Counted | None = None


class Answers:
    """What became of the latest completions, counted in the past acceptance."""

    def __init__(self, served: Served, acceptance: PastAcceptance, join_seconds: float) -> None:
        self._served = served
        self._acceptance = acceptance
        self._join_seconds = join_seconds
        self._impressions: OrderedDict[Hashable, _Impression] = OrderedDict()
        self._completions: OrderedDict[Hashable, _Answered] = OrderedDict()

    def add(self, row: Feedback) -> None:
        """Count an event."""
        request = self._request(row)
        own = (row.project, row.user, row.client_id or f"event {row.id}")
        impression = self._impressions.get(own) or _Impression(row.time)
        if self._is_no_label(row, request, impression.began):
            return
        self._impressions[own] = impression
        impression.strongest = max(impression.strongest, strength(row.outcome, row.reason))
        impression.cache_hit |= row.cache_hit
        completion: Hashable = request.id if request is not None else impression.completion or own
        if impression.completion not in (None, completion):
            self._move(own, impression, row)
        impression.completion = completion
        answered = self._completions.setdefault(completion, _Answered())
        answered.impressions[own] = impression
        self._count(answered, row.project, row.user, counts=request is None or request.counted)
        if len(self._impressions) > MOST:
            oldest, forgotten = self._impressions.popitem(last=False)
            if (of := self._completions.get(forgotten.completion)) is not None:
                of.impressions.pop(oldest, None)  # one completion may have any number
        if len(self._completions) > MOST:
            self._completions.popitem(last=False)

    def of(self, completion_id: str) -> Outcome | None:
        """Return what became of a completion, the strongest of its events that is no cache hit; None if none came."""
        answered = self._completions.get(completion_id)
        impressions = [each for each in answered.impressions.values() if not each.cache_hit] if answered else []
        return STRENGTH[max(each.strongest for each in impressions)] if impressions else None

    def ended(self, request: ServedRequest | None) -> None:
        """Take a completion out of the counts if its answer came before its end, and its end shows that it does not count."""
        if request is not None and not request.counted and (answered := self._completions.get(request.id)) is not None:
            self._count(answered, request.project, request.user, counts=False)

    def _request(self, row: Feedback) -> ServedRequest | None:
        if row.completion_id:
            return self._served.of(row.project, row.user, row.completion_id)
        return self._served.at_place(row.project, row.user, row.prefix, row.suffix, row.shown) if row.shown else None

    def _is_no_label(self, row: Feedback, request: ServedRequest | None, began: float) -> bool:
        """Return whether no label is joined from an event: it is not of its user's completion, or its impression is too late."""
        if row.completion_id:
            if request is None:
                return row.completion_id in self._served
            if row.prefix or request.text is None:
                return False
            shown = normal(row.shown)  # which may lack the blanks at the start
            return not (request.text.startswith(shown) or request.text.lstrip().startswith(shown))
        return not row.shown or (request is not None and began - request.arrived > self._join_seconds)

    def _move(self, own: Hashable, impression: _Impression, row: Feedback) -> None:
        """Take an impression away from the completion that it counted as before its own was known."""
        before = self._completions.get(impression.completion)
        if before is not None:
            before.impressions.pop(own, None)
            self._count(before, row.project, row.user, counts=True)

    def _count(self, answered: _Answered, project: str, user: str, *, counts: bool) -> None:
        """Count a completion by its impressions, in place of how it was counted before."""
        strongest = max((i.strongest for i in answered.impressions.values() if not i.cache_hit), default=0)
        accepted = is_accepted(strongest) if counts else None
        if answered.counted is not None:
            if answered.counted.accepted == accepted:
                return
            self._acceptance.remove(answered.counted)
        answered.counted = None if accepted is None else self._acceptance.add(project, user, accepted)
