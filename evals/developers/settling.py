"""Follows each requested place of a session until its text has settled, by the developer's own clock."""

from collections.abc import Callable
from dataclasses import dataclass

from evals.developers.draft import Draft
from evals.developers.pause import Kind, Pause, SettledTruth

OnSettled = Callable[[Pause, SettledTruth], None]


@dataclass
class _Place:
    """A place whose text may still change."""

    pause: Pause
    hole: int
    start: int
    """Offset of the cursor in the hole."""
    stop: int
    """Offset at which the request's suffix begins."""
    asked: float
    edited: float | None = None
    """End of the last edit at the place."""
    accepted: str = ""
    """The completion that was accepted there."""
    pasted: bool = False
    first: str | None = None
    """What stood there when it was quiet for the first time."""


class Settling:
    """The places of a session that have not settled yet."""

    def __init__(self, draft: Draft, quiet_seconds: float, most_seconds: float, on_settled: OnSettled) -> None:
        self._draft, self._quiet, self._most, self._on_settled = draft, quiet_seconds, most_seconds, on_settled
        self._places: list[_Place] = []

    def asked(self, pause: Pause, hole: int, start: int, stop: int, now: float) -> None:
        """Follow a place from its request on."""
        self._places.append(_Place(pause, hole, start, stop, now))

    def accepted(self, pause: Pause, text: str) -> None:
        """Note the completion that was accepted at a place."""
        for place in self._places:
            if place.pause is pause:
                place.accepted = text

    def edit(self, hole: int, at: int, began: float, ends: float, pasted: bool = False) -> None:
        """Settle what is due before an edit at an offset of a hole, then note the edit; call it before the draft changes."""
        for place in list(self._places):
            if place.first is None and place.edited is not None and place.edited + self._quiet <= began:
                place.first = self._text(place)
            if place.asked + self._most <= ends:
                self._settle(place, began)
            elif place.hole == hole and place.start <= at <= place.stop:
                place.edited, place.pasted = ends, place.pasted or pasted

    def deleted(self, pause: Pause, now: float) -> None:
        """Settle a place of which the text before the cursor goes."""
        for place in [place for place in self._places if place.pause is pause]:
            self._delete(place, now)

    def deleted_between(self, hole: int, start: int, end: int, now: float) -> None:
        """Settle the places of which some text before the cursor, from offset `start` on, is written again."""
        for place in [place for place in self._places if place.hole == hole and start < place.start <= end]:
            self._delete(place, now)

    def finish(self, now: float) -> None:
        """Settle all places: the developer leaves."""
        for place in list(self._places):
            self._settle(place, now)

    def _delete(self, place: _Place, now: float) -> None:
        self._places.remove(place)
        self._on_settled(place.pause, SettledTruth(None, False, "deleted", now - place.asked, place.first))

    def _settle(self, place: _Place, now: float) -> None:
        self._places.remove(place)
        text = self._text(place)
        whole = self._draft.is_complete(place.hole, place.start, place.stop)
        first = text if place.first is None else place.first
        self._on_settled(place.pause, SettledTruth(text, whole, _kind(place, text), min(now - place.asked, self._most), first))

    def _text(self, place: _Place) -> str:
        return self._draft.between(place.hole, place.start, place.stop)


def _kind(place: _Place, text: str) -> Kind:
    if not text:
        return "unfinished"
    if place.pasted:
        return "pasted"
    if place.accepted:
        return "accepted" if text.startswith(place.accepted) else "rewritten"
    return "typed"
