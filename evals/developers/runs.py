"""Runs of many developers: a live one, who type at once and send events, and a paired one, who meet several pinned versions at
the same positions of a ground."""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from evals.developers.draws import Quirks
from evals.developers.grounds import Ground
from evals.developers.live_session import Decision, LiveSession, Pacer, RunContext
from evals.developers.pause import ExpectedOutcome, Pause
from evals.developers.people import Attention
from evals.developers.protocol import Pin
from evals.developers.schedule import Schedule
from evals.developers.sessions import Draft, Session
from evals.developers.tally import Example, Tally, last_lines
from evals.developers.transport import Address, EditorClient, connect
from tasks.evaluation.positions import Code

MOST_WAITING = 5000
"""Sessions that may wait for their file: more than a pass over the held-out packages has (3,300).

With fewer, those of the longest files soon take every place, and developers stand still whose own file is free."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run of simulated developers."""

    address: Address = field(default_factory=Address)
    users: int = 120
    seed: int = 0  # seed of tastes, sessions, positions of comparisons and chance events
    requests: int | None = None  # end after so many requests; None: no bound
    seconds: float | None = None  # end after so many seconds; None: no bound
    speed: float = 20.0  # times faster than people that they pause, type and decide; does not scale the server's time
    rate: float = 0.0  # maximum requests a second; 0: limited by the concurrency only
    concurrency: int = 16  # developers who write at the same time
    first_visit: int = 0  # number of the first session, or of the first position of a comparison
    quirks: Quirks = field(default_factory=Quirks)
    examples: int = 200  # maximum number of suggestions kept for a report
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # keeps the editors' completion ids of two runs apart


class Workplace:
    """The files that are being written; one developer at a time works in each.

    The sessions begin in order, but a session whose file is taken waits while later ones begin. The sessions of a file keep
    their order.
    """

    def __init__(self, sessions: Iterator[Session]) -> None:
        self._sessions = sessions
        self._waiting: list[Session] = []
        self._taken: set[str] = set()
        self._freed = asyncio.Event()
        self._drafts: dict[str, tuple[int, Draft]] = {}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[tuple[Session, Draft]]:
        """Hold the file of the next session that can begin; waits for one.

        The draft is the file as the previous session left it; in a new pass, and at the run's first session there, as planned.
        """
        while (session := self._next()) is None:
            self._freed.clear()
            await self._freed.wait()
        name = session.source.name
        if self._drafts.get(name, (-1,))[0] != session.round:
            self._drafts[name] = session.round, session.draft()
        try:
            yield session, self._drafts[name][1]
        finally:
            self._taken.discard(name)
            self._freed.set()

    def _next(self) -> Session | None:
        free = next((session for session in self._waiting if session.source.name not in self._taken), None)
        while free is None and len(self._waiting) < MOST_WAITING:
            self._waiting.append(session := next(self._sessions))
            free = session if session.source.name not in self._taken else None
        if free is not None:
            self._waiting.remove(free)
            self._taken.add(free.source.name)
        return free


async def run(
    settings: RunSettings,
    code: Code,
    *,
    stop: asyncio.Event | None = None,
    progress: Callable[[Tally], None] | None = None,
    on_decision: Callable[[Decision], None] | None = None,
    rate: Callable[[], float] | None = None,
    client: Callable[[aiohttp.ClientSession, Address], EditorClient] = EditorClient,
) -> Tally:
    """Let developers write until the run is over. Return the sums after the last event was sent.

    Args:
        stop: Ends the run early.
        progress: Receives the sums about once a second.
        on_decision: Receives every decision once its text has settled.
        rate: Returns the current maximum of requests a second and replaces `settings.rate`.
        client: Makes the HTTP client that all developers share.
    """
    began, tally = time.monotonic(), Tally(most_examples=settings.examples)
    pacer = Pacer(settings.requests, settings.seconds, rate or (lambda: settings.rate), stop)
    schedule = Schedule(settings.users, settings.seed, code, settings.quirks)
    workplace = Workplace(schedule.session(number) for number in count(settings.first_visit))

    async def report(progress: Callable[[Tally], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            tally.seconds = time.monotonic() - began
            progress(tally)

    async with connect(settings.concurrency) as session, asyncio.TaskGroup() as events:
        context = RunContext(
            client=client(session, settings.address),
            tally=tally,
            speed=settings.speed,
            run_id=settings.run_id,
            pacer=pacer,
            background=events.create_task,
            on_decision=on_decision or (lambda decision: None),
            attention=defaultdict(lambda: Attention(settings.quirks.people)),
        )

        async def run_sessions() -> None:
            while not pacer.over:
                async with workplace.session() as (session, draft):
                    await LiveSession(context, schedule, session, draft).run()

        reporter = events.create_task(report(progress)) if progress else None
        await _together(settings.concurrency, run_sessions)
        if reporter:
            reporter.cancel()
    tally.seconds = time.monotonic() - began
    return tally


@dataclass(frozen=True)
class Pair:
    """A developer at a position, once with each pin."""

    user: str
    visit: int
    outcomes: tuple[ExpectedOutcome, ...]  # one for each pin, in the order of PairedRun.pins
    keys: int  # of the lines that the developer writes there
    ids: tuple[str, ...] = ()  # the server's id of each completion


@dataclass(frozen=True)
class PairedRun:
    """The result of a paired run."""

    pins: tuple[Pin, ...]
    pairs: tuple[Pair, ...]  # the positions that all pins answered
    tallies: tuple[Tally, ...]  # for each pin, the sums over all its answers
    dropped: int  # positions that some pin did not answer; missing from `pairs`


async def measure(
    settings: RunSettings,
    code: Code,
    pins: Sequence[Pin],
    visits: int,
    *,
    ground: Ground = "later",
    progress: Callable[[int], None] | None = None,
) -> PairedRun:
    """Show completions of each pinned version to the same developers at the same positions of a ground.

    Developers do not type over answers and send no events. `progress` receives the number of positions done so far.

    Raises NoCode where the code holds no position of the ground.
    """
    began = time.monotonic()
    tallies = tuple(Tally(most_examples=settings.examples) for _ in pins)
    pacer = Pacer(None, settings.seconds, lambda: settings.rate, None)
    schedule = Schedule(settings.users, settings.seed, code, settings.quirks)
    numbers = iter(range(settings.first_visit, settings.first_visit + visits))
    pairs: list[Pair] = []
    done = 0
    async with connect(settings.concurrency) as session:
        client = EditorClient(session, settings.address)

        async def run_pauses() -> None:
            nonlocal done
            for number in numbers:
                outcomes: dict[int, tuple[ExpectedOutcome, str] | None] = {}
                pause = schedule.first_pause(number, ground)
                for turn in range(len(pins)):
                    index = (number + turn) % len(pins)  # the pins take turns at being first
                    if not await pacer():
                        return
                    outcomes[index] = await _outcome(client, pause, pins[index], tallies[index])
                answered = tuple(outcome for index in range(len(pins)) if (outcome := outcomes[index]) is not None)
                done += 1
                if len(answered) == len(pins):
                    expected, ids = zip(*answered, strict=True)
                    pairs.append(Pair(pause.developer.name, number, expected, pause.keys, ids))
                if progress is not None:
                    progress(done)

        await _together(settings.concurrency, run_pauses)
    for tally in tallies:
        tally.seconds = time.monotonic() - began
    ordered = tuple(sorted(pairs, key=lambda pair: pair.visit))
    return PairedRun(tuple(pins), ordered, tallies, done - len(ordered))


async def _together(count: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())


async def _outcome(client: EditorClient, pause: Pause, pin: Pin, tally: Tally) -> tuple[ExpectedOutcome, str] | None:
    """Return the expected outcome of one pin at one pause and the completion's id; None without an answer."""
    user, version = pause.developer.name, pin.version
    answer = await client.complete(user, pause.prefix, pause.suffix, pin=pin)
    if answer.error:
        tally.add(user, version, requests=1, errors=1)
        return None
    outcome, choice = pause.answer(answer.text)
    file, truth, before = pause.position.file, pause.position.truth, last_lines(pause.prefix)
    if choice is None:
        tally.add(user, version, requests=1, nothing=1)
        tally.keep(Example(user, version, file, before, "", truth, False, "nothing"))  # another pin may show something here
        return outcome, answer.completion_id
    accepted, text = choice.accepted, outcome.shown
    tally.add(
        user,
        version,
        **{"requests": 1, "shown": 1, "judged": 1, "accepted": int(accepted), "rejected": int(not accepted)},
        shown_characters=len(text),
        accepted_characters=len(text) * accepted,
        kept_characters=outcome.kept * accepted,
    )
    tally.keep(Example(user, version, file, before, text, truth, accepted, choice.opinion.reason))
    return outcome, answer.completion_id
