"""One developer at one place: types, pauses, looks at what is suggested, takes it or types on."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from evals.developers import draws, editor, protocol
from evals.developers.draws import Draws, Quirks
from evals.developers.tally import Example, Ledger
from evals.developers.taste import Opinion, Taste, judge
from evals.developers.transport import Answer, Wire
from evals.positions import Position

DEBOUNCE_MS = 350.0
REJECTED_AFTER_SECONDS = 10.0
CHARACTERS_PER_SECOND = 6.0


@dataclass(frozen=True)
class Decision:
    """One pause and what came of it; never sent anywhere, written by --decisions."""

    user: str
    visit: int
    stop: int
    version: str
    outcome: str
    """accepted, rejected, unreported, nothing, cancelled or error."""
    reason: str
    shown: str
    truth: str
    right: int
    elapsed_ms: float


@dataclass(frozen=True)
class Developer:
    """Who types."""

    name: str
    taste: Taste


@dataclass(frozen=True)
class Desk:
    """What all developers of a run share."""

    wire: Wire
    ledger: Ledger
    quirks: Quirks
    speed: float
    """How many times faster than people."""
    run_id: str
    """Keeps the editors' completion ids of two runs apart."""
    pace: Callable[[], Awaitable[bool]]
    """Waits for the next request's turn; false when the run is over."""
    background: Callable[[Awaitable[None]], None]
    """Has events sent when their time comes."""
    decided: Callable[[Decision], None]


class Visit:
    """Goes through the pauses at one place."""

    def __init__(self, desk: Desk, developer: Developer, number: int, key: tuple[object, ...], place: Position) -> None:
        self._desk, self._developer, self._number, self._key, self._place = desk, developer, number, key, place
        self._waiting: tuple[protocol.Shown, float, Draws, str] | None = None
        """A suggestion not taken, whose event is due 10 s after the show unless the next one cancels it."""

    async def go(self) -> None:
        """Type until the place is written or the developer turns elsewhere."""
        prefix, suffix = editor.window(self._place.prefix, self._place.suffix)
        truth = self._place.truth
        for stop in range(self._desk.quirks.most_stops):
            if not truth.strip() or not await self._desk.pace():
                break
            drawn = draws.draws_at(draws.stream(*self._key, stop), self._developer.taste, self._desk.quirks)
            outcome, typed = await self._pause(stop, prefix, suffix, truth, drawn)
            if outcome == "accepted" or not (drawn.goes_on or outcome == "cancelled"):
                break
            typed += draws.next_word(truth[len(typed) :]) if outcome != "cancelled" else ""
            prefix, truth = prefix + typed, truth[len(typed) :]
            await asyncio.sleep((len(typed) / CHARACTERS_PER_SECOND + DEBOUNCE_MS / 1000) / self._desk.speed)
        self._report_waiting()

    async def _pause(self, stop: int, prefix: str, suffix: str, truth: str, drawn: Draws) -> tuple[str, str]:
        """One request. Returns its outcome and what was typed meanwhile."""
        typed = truth[: drawn.typed] if drawn.types_on and len(truth) > drawn.typed else ""
        moment = {"began": time.time()}
        answer = await self._desk.wire.complete(self._developer.name, prefix, suffix, _leaving(typed, drawn.typed_at))
        self._count(answer, requests=1)
        if answer.error:
            self._count(answer, errors=1)
            self._decide(stop, answer, "error", answer.error, "", truth, 0)
            return "error", ""
        if answer.cancelled or not answer.text.startswith(typed):
            self._count(answer, cancelled=1)
            self._decide(stop, answer, "cancelled", "typed over", "", truth, 0)
            return "cancelled", typed
        prefix, truth, generated = prefix + typed, truth[len(typed) :], answer.text[len(typed) :]
        text = editor.shown(generated, prefix, suffix)
        if not text:
            self._count(answer, nothing=1)
            self._decide(stop, answer, "nothing", "", "", truth, 0)
            return "nothing", typed
        self._count(answer, shown=1, shown_characters=len(text), reused=int(bool(typed)))
        shown = protocol.Shown(
            completion_id=self._completion_id(drawn),
            user=self._developer.name,
            file=self._place.file,
            prefix=prefix,
            suffix=suffix,
            completion=text,
            made=moment["began"],
            elapsed_ms=DEBOUNCE_MS + answer.elapsed_ms,
            model=self._desk.wire.address.model,
        )
        self._replace_waiting(text)
        opinion, accepted = opinion_of(self._developer.taste, generated, text, truth, drawn.flipped)
        outcome = self._settle(shown, accepted, opinion, answer, drawn)
        self._decide(stop, answer, outcome, opinion.reason, text, truth, opinion.right)
        before = "\n".join(prefix.split("\n")[-2:])
        self._desk.ledger.show(
            Example(self._developer.name, answer.version, shown.file, before, text, truth, accepted, opinion.reason)
        )
        return outcome, typed

    def _settle(self, shown: protocol.Shown, accepted: bool, opinion: Opinion, answer: Answer, drawn: Draws) -> str:
        """Count the decision and have its events sent."""
        if drawn.superseded:
            self._count(answer, unreported=1)
            return "unreported"
        if not accepted:
            self._waiting = (shown, time.monotonic(), drawn, answer.version)
            return "rejected"
        size = len(shown.completion)
        kept = min(opinion.right, size)
        self._count(answer, judged=1, accepted=1, accepted_characters=size, kept_characters=kept, late=int(drawn.late))
        self._desk.background(self._accept(shown, answer.version, drawn))
        return "accepted"

    def _replace_waiting(self, text: str) -> None:
        """Continue drops the event of a suggestion when the next one's first line is its start or end, or the other way round."""
        if self._waiting is None:
            return
        shown, _, _, version = self._waiting
        old, new = shown.completion.split("\n")[0], text.split("\n")[0]
        if old.startswith(new) or old.endswith(new) or new.startswith(old) or new.endswith(old):
            self._desk.ledger.add(self._developer.name, version, unreported=1)
            self._waiting = None
        self._report_waiting()

    def _report_waiting(self) -> None:
        if self._waiting is not None:
            shown, since, drawn, version = self._waiting
            self._desk.ledger.add(self._developer.name, version, judged=1, rejected=1)
            self._desk.background(self._reject(shown, version, since, drawn))
            self._waiting = None

    async def _accept(self, shown: protocol.Shown, version: str, drawn: Draws) -> None:
        if drawn.late:
            await self._wait(REJECTED_AFTER_SECONDS)
            await self._post(shown, version, False, drawn)
            await self._wait(drawn.late_seconds)
        else:
            await self._wait(drawn.accept_seconds)
        await self._post(shown, version, True, drawn)
        await self._show_cached(shown, version, True, drawn)

    async def _reject(self, shown: protocol.Shown, version: str, since: float, drawn: Draws) -> None:
        passed = (time.monotonic() - since) * self._desk.speed
        await self._wait(max(0.0, REJECTED_AFTER_SECONDS - passed))
        await self._post(shown, version, False, drawn)
        await self._show_cached(shown, version, False, drawn)

    async def _show_cached(self, shown: protocol.Shown, version: str, accepted: bool, drawn: Draws) -> None:
        if drawn.cached:
            again = replace(shown, completion_id=str(uuid.uuid5(uuid.UUID(shown.completion_id), "again")), made=time.time())
            self._desk.ledger.add(shown.user, version, cache_hits=1)
            await self._wait(drawn.accept_seconds if accepted else REJECTED_AFTER_SECONDS)
            await self._post(again, version, accepted, drawn, cache_hit=True)

    async def _post(self, shown: protocol.Shown, version: str, accepted: bool, drawn: Draws, cache_hit: bool = False) -> None:
        body = protocol.event(shown, accepted, cache_hit)
        if not await self._desk.wire.post(shown.user, body):
            self._desk.ledger.add(shown.user, version, lost_events=1)
        if drawn.duplicated:
            self._desk.ledger.add(shown.user, version, duplicates=1)
            await self._desk.wire.post(shown.user, body)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._desk.speed)

    def _completion_id(self, drawn: Draws) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._desk.run_id}/{drawn.completion_bits}"))

    def _count(self, answer: Answer, **counts: int) -> None:
        self._desk.ledger.add(self._developer.name, answer.version, **counts)

    def _decide(self, stop: int, answer: Answer, outcome: str, reason: str, text: str, truth: str, right: int) -> None:
        self._desk.decided(
            Decision(
                user=self._developer.name,
                visit=self._number,
                stop=stop,
                version=answer.version,
                outcome=outcome,
                reason=reason,
                shown=text,
                truth=truth,
                right=right,
                elapsed_ms=answer.elapsed_ms,
            )
        )


def opinion_of(taste: Taste, generated: str, text: str, truth: str, flipped: bool) -> tuple[Opinion, bool]:
    """What they think of what is shown, and what they do; a space that the editor took off is not held against it."""
    if editor.lost_space(generated, text):
        truth = truth.removeprefix(" ")
    opinion = judge(taste, text, truth)
    return opinion, opinion.accepted is not flipped


def _leaving(typed: str, at: int) -> Callable[[str], bool] | None:
    """Close the connection when, at the keystroke, the text so far and the typed text part ways."""
    if not typed:
        return None
    return lambda text: len(text) >= at and not (text.startswith(typed) or typed.startswith(text))
