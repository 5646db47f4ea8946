"""One session of a developer against a server: types, pauses, reads the suggestion, accepts it or types on."""

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from evals.developers import protocol
from evals.developers.draws import REJECTED_AFTER_SECONDS, Draws
from evals.developers.pause import Pause, SettledTruth, Way
from evals.developers.people import Attention
from evals.developers.protocol import Impression
from evals.developers.schedule import Schedule
from evals.developers.seen import see, typed_meanwhile
from evals.developers.sessions import Draft, Session
from evals.developers.tally import Example, Tally, costs, last_lines
from evals.developers.transport import Answer, EditorClient
from evals.developers.writer import DEBOUNCE_SECONDS, Reaction

DEBOUNCE_MS = 1000 * DEBOUNCE_SECONDS
STEP_SECONDS = 0.2
"""Longest sleep of a waiting developer before the pacer reads the rate again."""


class Pacer:
    """Grants at most `rate()` turns a second, at most `requests` in total, and none after `seconds` or once `stop` is set."""

    def __init__(
        self, requests: int | None, seconds: float | None, rate: Callable[[], float], stop: asyncio.Event | None
    ) -> None:
        self._remaining = math.inf if requests is None else requests
        self._last_turn = time.monotonic()
        self._end = math.inf if seconds is None else self._last_turn + seconds
        self._rate, self._stop = rate, stop or asyncio.Event()
        self._lock = asyncio.Lock()

    async def __call__(self) -> bool:
        """Wait for a turn. Return False when no turns remain."""
        if self.over:
            return False
        self._remaining -= 1
        async with self._lock:
            # Sleeps in short steps because the rate changes: one long sleep would outlast a change to a faster rate.
            while (turn := self._last_turn + self._interval) > time.monotonic() and not self._stopped:
                await asyncio.sleep(min(turn - time.monotonic(), STEP_SECONDS))
            self._last_turn = max(turn, time.monotonic() - 1.0)
        return not self._stopped

    @property
    def _interval(self) -> float:
        rate = self._rate()
        return 1 / rate if rate > 0 else 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep so many seconds, or until `stop` is set."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    @property
    def over(self) -> bool:
        """Whether no turns remain."""
        return self._stopped or self._remaining <= 0

    @property
    def _stopped(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._end


@dataclass(frozen=True)
class Decision:
    """A pause, its outcome and the settled text, as `--decisions` writes it; never sent to a server."""

    user: str
    visit: int  # number of the session
    file: str
    offset: int  # offset of the cursor in the finished file
    way: Way
    stop: int  # number of the pause in this line
    prefix: str  # as sent
    suffix: str
    version: str
    outcome: str  # accepted, rejected, unreported, nothing, cancelled or error
    reason: str
    truth: str
    elapsed_ms: float
    accepted: bool = False  # the developer accepted, even if the editor did not report it
    shown: str = ""
    right: int = 0  # right characters from the start
    request_id: str = ""  # id of the answer; empty without one
    completion_id: str = ""  # the editor's id of the impression; empty if nothing was shown
    settled: SettledTruth | None = None


@dataclass(frozen=True)
class RunContext:
    """The shared parts of all sessions of a run."""

    client: EditorClient
    tally: Tally
    speed: float  # how many times faster than people
    run_id: str  # keeps the editors' completion ids of two runs apart
    pacer: Pacer  # grants the turns of requests, and ends a developer's absence with the run
    background: Callable[[Coroutine[Any, Any, None]], object]  # runs the sending of events beside the session
    on_decision: Callable[[Decision], None]
    attention: Mapping[str, Attention]  # by developer


@dataclass(frozen=True)
class Shown:
    """A suggestion that the developer saw."""

    impression: Impression
    version: str
    at: float  # monotonic seconds
    draws: Draws


class LiveSession:
    """One developer who writes in one file, against a server."""

    def __init__(self, context: RunContext, schedule: Schedule, session: Session, draft: Draft) -> None:
        self._context, self._developer = context, session.developer
        self._attention = context.attention[session.developer.name]
        self._writer = schedule.writer(session, draft, self._write_decision)
        self._decisions: dict[int, Decision] = {}
        """Decisions whose text has not settled, by the id of the pause."""
        self._pending: Shown | None = None
        """A suggestion not taken; its event is due 10 s after the impression unless the next suggestion cancels it."""

    async def run(self) -> None:
        """Write until the developer leaves the file or the run is over."""
        steps, reaction, owed = self._writer.steps(), None, 0.0
        try:
            while True:
                step = steps.send(reaction)
                reaction = None
                if isinstance(step, float):
                    owed += step
                    continue
                await self._context.pacer.sleep(owed / self._context.speed)
                owed = 0.0
                if self._attention.off:
                    self._attention.silence()
                    self._count("", off=1)
                    reaction = Reaction("nothing")
                    continue
                if not await self._context.pacer():
                    break
                reaction = await self._pause(step)
        except StopIteration:
            pass
        self._writer.settling.finish(self._writer.clock)
        self._report_pending()
        self._count("", written_keys=self._writer.keys, writing_ms=round(1e3 * self._writer.clock))

    def _write_decision(self, pause: Pause, truth: SettledTruth) -> None:
        # A pause that the end of the run cut off has no decision.
        decision = self._decisions.pop(id(pause), None)
        if decision is not None:
            self._context.on_decision(replace(decision, settled=truth))

    async def _pause(self, pause: Pause) -> Reaction:
        """Send one request and return the developer's reaction."""
        developer, context, draws, typed = self._developer, self._context, pause.draws, typed_meanwhile(pause)
        requested_at = time.time()
        check = _typing_check(typed, draws.typed_at)
        answer = await context.client.complete(developer.name, pause.prefix, pause.suffix, check, whole=developer.silent)
        self._count(answer.version, requests=1)
        if answer.error:
            self._count(answer.version, errors=1)
            self._decide(pause, answer, "error", reason=answer.error)
            return Reaction("error")
        if answer.cancelled or not answer.text.startswith(typed):
            self._count(answer.version, cancelled=1)
            self._decide(pause, answer, "cancelled", reason="typed over")
            if developer.native and answer.completion_id:
                context.background(self._report_cancelled(answer))
            return Reaction("cancelled", typed)
        seen = see(pause, answer.text, typed, self._attention, answer.elapsed_ms / 1e3)
        if seen.kind == "nothing":
            self._count(answer.version, nothing=1)
            self._decide(pause, answer, "nothing", truth=seen.truth)
            return Reaction("nothing", typed)
        text, opinion = seen.shown, seen.opinion
        assert opinion is not None
        self._count(answer.version, shown=1, shown_characters=len(text), reused=int(bool(typed)))
        impression = Impression(
            completion_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{context.run_id}/{draws.completion_bits}")),
            user=developer.name,
            file=pause.position.file,
            prefix=pause.prefix + typed,
            suffix=pause.suffix,
            completion=text,
            requested_at=requested_at,
            elapsed_ms=DEBOUNCE_MS + answer.elapsed_ms,
            model=context.client.address.model,
            request_id=answer.completion_id,
        )
        self._replace_pending(text)
        self._count(answer.version, **costs(seen))
        outcome = self._report(Shown(impression, answer.version, time.monotonic(), draws), seen.accepted, seen.kept)
        known: dict[str, Any] = {"truth": seen.truth, "shown": text, "accepted": seen.accepted, "reason": opinion.reason}
        self._decide(pause, answer, outcome, **known, right=opinion.right, completion_id=impression.completion_id)
        context.tally.keep(Example(developer.name, answer.version, impression.file, last_lines(impression.prefix), **known))
        return seen.reaction(outcome)

    def _decide(self, pause: Pause, answer: Answer, outcome: str, **changes: Any) -> None:
        """Keep the decision at a pause until its text has settled."""
        decision = Decision(
            user=self._developer.name,
            visit=pause.visit,
            file=pause.position.file,
            offset=pause.position.offset,
            way=pause.way,
            stop=pause.stop,
            prefix=pause.prefix,
            suffix=pause.suffix,
            version=answer.version,
            outcome=outcome,
            reason="",
            truth=pause.position.truth,
            elapsed_ms=answer.elapsed_ms,
            request_id=answer.completion_id,
        )
        self._decisions[id(pause)] = replace(decision, **changes)

    def _report(self, shown: Shown, accepted: bool, kept: int) -> str:
        """Count the decision and schedule its events. Return the outcome."""
        if self._developer.silent or shown.draws.superseded:
            self._count(shown.version, unreported=1, silent=int(self._developer.silent))
            return "unreported"
        if not accepted:
            self._pending = shown
            return "rejected"
        size, late = len(shown.impression.completion), int(shown.draws.late)
        self._count(shown.version, judged=1, accepted=1, accepted_characters=size, kept_characters=kept, late=late)
        self._context.background(self._accept(shown))
        return "accepted"

    def _replace_pending(self, text: str) -> None:
        """Settle the pending rejection as Continue does when a new suggestion appears.

        Continue drops the pending event if the first line of one suggestion is a start or an end of the other's.
        """
        if self._pending is None:
            return
        old, new = self._pending.impression.completion.split("\n")[0], text.split("\n")[0]
        if old.startswith(new) or old.endswith(new) or new.startswith(old) or new.endswith(old):
            self._count(self._pending.version, unreported=1)
            self._pending = None
        self._report_pending()

    def _report_pending(self) -> None:
        if self._pending is not None:
            self._count(self._pending.version, judged=1, rejected=1)
            self._context.background(self._reject(self._pending))
            self._pending = None

    async def _accept(self, shown: Shown) -> None:
        if shown.draws.late:
            await self._wait(REJECTED_AFTER_SECONDS)
            await self._post(shown, False)
        await self._wait(shown.draws.late_seconds if shown.draws.late else shown.draws.accept_seconds)
        await self._post_last(shown, True)

    async def _reject(self, shown: Shown) -> None:
        passed = (time.monotonic() - shown.at) * self._context.speed
        await self._wait(max(0.0, REJECTED_AFTER_SECONDS - passed))
        await self._post_last(shown, False)

    async def _post_last(self, shown: Shown, accepted: bool) -> None:
        """Post the decision, and that of the same suggestion if the editor shows it again from its cache."""
        await self._post(shown, accepted)
        if shown.draws.cached and not self._developer.native:
            completion_id = str(uuid.uuid5(uuid.UUID(shown.impression.completion_id), "again"))
            repeat = replace(shown.impression, completion_id=completion_id, requested_at=time.time())
            self._count(shown.version, cache_hits=1)
            await self._wait(shown.draws.accept_seconds if accepted else REJECTED_AFTER_SECONDS)
            await self._post(replace(shown, impression=repeat), accepted, cache_hit=True)

    async def _report_cancelled(self, answer: Answer) -> None:
        body: dict[str, Any] = {"completion_id": answer.completion_id, "reason": "cancelled"}
        if not await self._context.client.post(self._developer.name, body, native=True):
            self._count(answer.version, lost_events=1)

    async def _post(self, shown: Shown, accepted: bool, cache_hit: bool = False) -> None:
        client, name, native = self._context.client, self._developer.name, self._developer.native
        if native:
            body = protocol.native_body(shown.impression, accepted, shown.draws)
        else:
            body = protocol.event_body(shown.impression, accepted, cache_hit)
        if not await client.post(name, body, native=native):
            self._count(shown.version, lost_events=1)
        if shown.draws.duplicated:
            self._count(shown.version, duplicates=1)
            await client.post(name, body, native=native)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._context.speed)

    def _count(self, version: str, **counts: int) -> None:
        self._context.tally.add(self._developer.name, version, **counts)


def _typing_check(typed: str, keystroke_at: int) -> Callable[[str], bool] | None:
    """Return the check that closes the connection if, at the keystroke, the streamed and the typed text differ."""
    if not typed:
        return None
    return lambda text: len(text) >= keystroke_at and not (text.startswith(typed) or typed.startswith(text))
