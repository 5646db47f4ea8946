"""One developer at one position: types, pauses, reads the suggestion, accepts it or types on."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from evals.developers import draws, editor, protocol
from evals.developers.draws import Draws, Quirks
from evals.developers.protocol import Impression
from evals.developers.tally import Example, Ledger
from evals.developers.taste import Opinion, Taste, judge
from evals.developers.transport import Answer, EditorClient
from evals.positions import Position

DEBOUNCE_MS = 350.0
REJECTED_AFTER_SECONDS = 10.0
CHARACTERS_PER_SECOND = 6.0


@dataclass(frozen=True)
class Decision:
    """One pause and its outcome, as `--decisions` writes it; never sent to a server."""

    user: str
    visit: int
    stop: int
    """Number of the pause at this position."""
    version: str
    outcome: str
    """accepted, rejected, unreported, nothing, cancelled or error."""
    reason: str
    shown: str
    truth: str
    right: int
    """Right characters from the start."""
    elapsed_ms: float


@dataclass(frozen=True)
class Developer:
    """A simulated developer."""

    name: str
    taste: Taste


@dataclass(frozen=True)
class RunContext:
    """What all visits of a run share."""

    client: EditorClient
    ledger: Ledger
    quirks: Quirks
    speed: float
    """How many times faster than people."""
    run_id: str
    """Keeps the editors' completion ids of two runs apart."""
    pacer: Callable[[], Awaitable[bool]]
    """Waits for the turn of the next request; returns False when the run is over."""
    background: Callable[[Awaitable[None]], None]
    """Runs the sending of events beside the visit."""
    on_decision: Callable[[Decision], None]


@dataclass(frozen=True)
class PendingRejection:
    """A suggestion not taken. Its event is due 10 s after the impression unless the next suggestion cancels it."""

    impression: Impression
    version: str
    shown_at: float
    """Monotonic seconds."""
    draws: Draws


class Visit:
    """The pauses of one developer at one position."""

    def __init__(
        self, context: RunContext, developer: Developer, number: int, key: tuple[object, ...], position: Position
    ) -> None:
        self._context, self._developer, self._number, self._key, self._position = context, developer, number, key, position
        self._pending: PendingRejection | None = None

    async def run(self) -> None:
        """Type until the text is complete or the developer leaves."""
        prefix, suffix = editor.prompt_context(self._position.prefix, self._position.suffix)
        truth, quirks = self._position.truth, self._context.quirks
        for stop in range(quirks.most_stops):
            if not truth.strip() or not await self._context.pacer():
                break
            stop_draws = draws.draws_at(draws.random_stream(*self._key, stop), self._developer.taste, quirks)
            outcome, typed = await self._pause(stop, prefix, suffix, truth, stop_draws)
            if outcome == "accepted" or not (stop_draws.goes_on or outcome == "cancelled"):
                break
            typed += draws.next_word(truth[len(typed) :]) if outcome != "cancelled" else ""
            prefix, truth = prefix + typed, truth[len(typed) :]
            await self._wait(len(typed) / CHARACTERS_PER_SECOND + DEBOUNCE_MS / 1000)
        self._report_pending()

    async def _pause(self, stop: int, prefix: str, suffix: str, truth: str, draws: Draws) -> tuple[str, str]:
        """Send one request. Return its outcome and the text typed while the answer streamed."""
        typed = truth[: draws.typed] if draws.types_on and len(truth) > draws.typed else ""
        requested_at = time.time()
        name, context = self._developer.name, self._context
        answer = await context.client.complete(name, prefix, suffix, _typing_check(typed, draws.typed_at))
        self._count(answer, requests=1)
        decision = Decision(name, self._number, stop, answer.version, "error", answer.error, "", truth, 0, answer.elapsed_ms)
        if answer.error:
            self._count(answer, errors=1)
            context.on_decision(decision)
            return "error", ""
        if answer.cancelled or not answer.text.startswith(typed):
            self._count(answer, cancelled=1)
            context.on_decision(replace(decision, outcome="cancelled", reason="typed over"))
            return "cancelled", typed
        prefix, truth, generated = prefix + typed, truth[len(typed) :], answer.text[len(typed) :]
        text = editor.shown_text(generated, prefix, suffix)
        if not text:
            self._count(answer, nothing=1)
            context.on_decision(replace(decision, outcome="nothing", truth=truth))
            return "nothing", typed
        self._count(answer, shown=1, shown_characters=len(text), reused=int(bool(typed)))
        impression = Impression(
            completion_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{context.run_id}/{draws.completion_bits}")),
            user=name,
            file=self._position.file,
            prefix=prefix,
            suffix=suffix,
            completion=text,
            requested_at=requested_at,
            elapsed_ms=DEBOUNCE_MS + answer.elapsed_ms,
            model=context.client.address.model,
        )
        self._replace_pending(text)
        opinion, accepted = opinion_of(self._developer.taste, generated, text, truth, draws.flipped)
        outcome = self._settle(impression, accepted, opinion, answer, draws)
        context.on_decision(
            replace(decision, outcome=outcome, reason=opinion.reason, shown=text, truth=truth, right=opinion.right)
        )
        before = "\n".join(prefix.split("\n")[-2:])
        context.ledger.add_example(Example(name, answer.version, impression.file, before, text, truth, accepted, opinion.reason))
        return outcome, typed

    def _settle(self, impression: Impression, accepted: bool, opinion: Opinion, answer: Answer, draws: Draws) -> str:
        """Count the decision and schedule its events. Return the outcome."""
        if draws.superseded:
            self._count(answer, unreported=1)
            return "unreported"
        if not accepted:
            self._pending = PendingRejection(impression, answer.version, time.monotonic(), draws)
            return "rejected"
        size = len(impression.completion)
        right = min(opinion.right, size)
        self._count(answer, judged=1, accepted=1, accepted_characters=size, kept_characters=right, late=int(draws.late))
        self._context.background(self._accept(impression, answer.version, draws))
        return "accepted"

    def _replace_pending(self, text: str) -> None:
        """Settle the pending rejection as Continue does when a new suggestion appears.

        Continue drops the pending event if the first line of one suggestion is a start or an end of the other's.
        """
        if self._pending is None:
            return
        old, new = self._pending.impression.completion.split("\n")[0], text.split("\n")[0]
        if old.startswith(new) or old.endswith(new) or new.startswith(old) or new.endswith(old):
            self._context.ledger.add(self._developer.name, self._pending.version, unreported=1)
            self._pending = None
        self._report_pending()

    def _report_pending(self) -> None:
        if self._pending is not None:
            self._context.ledger.add(self._developer.name, self._pending.version, judged=1, rejected=1)
            self._context.background(self._reject(self._pending))
            self._pending = None

    async def _accept(self, impression: Impression, version: str, draws: Draws) -> None:
        if draws.late:
            await self._wait(REJECTED_AFTER_SECONDS)
            await self._post(impression, version, False, draws)
            await self._wait(draws.late_seconds)
        else:
            await self._wait(draws.accept_seconds)
        await self._post(impression, version, True, draws)
        await self._show_cached(impression, version, True, draws)

    async def _reject(self, pending: PendingRejection) -> None:
        passed = (time.monotonic() - pending.shown_at) * self._context.speed
        await self._wait(max(0.0, REJECTED_AFTER_SECONDS - passed))
        await self._post(pending.impression, pending.version, False, pending.draws)
        await self._show_cached(pending.impression, pending.version, False, pending.draws)

    async def _show_cached(self, impression: Impression, version: str, accepted: bool, draws: Draws) -> None:
        if draws.cached:
            completion_id = str(uuid.uuid5(uuid.UUID(impression.completion_id), "again"))
            repeat = replace(impression, completion_id=completion_id, requested_at=time.time())
            self._context.ledger.add(impression.user, version, cache_hits=1)
            await self._wait(draws.accept_seconds if accepted else REJECTED_AFTER_SECONDS)
            await self._post(repeat, version, accepted, draws, cache_hit=True)

    async def _post(self, impression: Impression, version: str, accepted: bool, draws: Draws, cache_hit: bool = False) -> None:
        body = protocol.event_body(impression, accepted, cache_hit)
        if not await self._context.client.post(impression.user, body):
            self._context.ledger.add(impression.user, version, lost_events=1)
        if draws.duplicated:
            self._context.ledger.add(impression.user, version, duplicates=1)
            await self._context.client.post(impression.user, body)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._context.speed)

    def _count(self, answer: Answer, **counts: int) -> None:
        self._context.ledger.add(self._developer.name, answer.version, **counts)


def opinion_of(taste: Taste, generated: str, text: str, truth: str, flipped: bool) -> tuple[Opinion, bool]:
    """Return a developer's opinion of the shown `text`, and whether they accept it, which `flipped` inverts.

    The opinion ignores a space that the editor removed.
    """
    if editor.lost_space(generated, text):
        truth = truth.removeprefix(" ")
    opinion = judge(taste, text, truth)
    return opinion, opinion.accepted is not flipped


def _typing_check(typed: str, keystroke_at: int) -> Callable[[str], bool] | None:
    """Return the check that closes the connection if, at the keystroke, the streamed and the typed text differ."""
    if not typed:
        return None
    return lambda text: len(text) >= keystroke_at and not (text.startswith(typed) or typed.startswith(text))
