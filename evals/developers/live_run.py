"""A live run: many developers type at once and send events."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import aiohttp

from evals.developers.draws import Quirks
from evals.developers.live_session import Decision, LiveSession, RunContext
from evals.developers.pacer import Pacer
from evals.developers.schedule import Schedule
from evals.developers.sessions import Draft, Session
from evals.developers.tally import Ledger, Tally
from evals.developers.transport import Address, EditorClient, connect
from tasks.evaluation.positions import Code

MOST_WAITING = 500
"""Sessions that may wait for their file."""


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
    async def session(self) -> AsyncIterator[Session]:
        """Hold the file of the next session that can begin; waits for one."""
        while (session := self._next()) is None:
            self._freed.clear()
            await self._freed.wait()
        try:
            yield session
        finally:
            self._taken.discard(session.source.name)
            self._freed.set()

    def _next(self) -> Session | None:
        free = next((session for session in self._waiting if session.source.name not in self._taken), None)
        if free is not None:
            self._waiting.remove(free)
        while free is None and len(self._waiting) < MOST_WAITING:
            session = next(self._sessions)
            if session.source.name in self._taken:
                self._waiting.append(session)
            else:
                free = session
        if free is not None:
            self._taken.add(free.source.name)
        return free

    def draft(self, session: Session) -> Draft:
        """Return the file as the previous session left it; in a new pass, and at the run's first session there, as planned."""
        number, draft = self._drafts.get(session.source.name, (-1, None))
        if draft is None or number != session.round:
            draft = session.draft()
            self._drafts[session.source.name] = session.round, draft
        return draft


async def _report(progress: Callable[[Tally], None], tally: Callable[[], Tally]) -> None:
    while True:
        await asyncio.sleep(1.0)
        progress(tally())


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
    began, ledger = time.monotonic(), Ledger(settings.examples)
    pacer = Pacer(settings.requests, settings.seconds, rate or (lambda: settings.rate), stop)
    schedule = Schedule(settings.users, settings.seed, code, settings.quirks)
    workplace = Workplace(schedule.session(number) for number in count(settings.first_visit))

    def tally() -> Tally:
        return ledger.tally(time.monotonic() - began)

    async with connect(settings.concurrency) as session, asyncio.TaskGroup() as events:
        context = RunContext(
            client=client(session, settings.address),
            ledger=ledger,
            speed=settings.speed,
            run_id=settings.run_id,
            pacer=pacer,
            background=events.create_task,
            on_decision=on_decision or (lambda decision: None),
        )

        async def run_sessions() -> None:
            while not pacer.over:
                async with workplace.session() as session:
                    await LiveSession(context, schedule, session, workplace.draft(session)).run()

        reporter = events.create_task(_report(progress, tally)) if progress else None
        async with asyncio.TaskGroup() as group:
            for _ in range(settings.concurrency):
                group.create_task(run_sessions())
        if reporter:
            reporter.cancel()
    return tally()
