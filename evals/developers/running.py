"""Many developers at once, live or in pairs."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from evals.developers.draws import Quirks
from evals.developers.looks import Look, Outcome, Schedule
from evals.developers.tally import Example, Ledger, Tally
from evals.developers.transport import Address, Wire, connect
from evals.developers.visit import Decision, Desk, Visit
from evals.positions import Code


@dataclass(frozen=True)
class Run:
    """What a run of simulated developers is."""

    address: Address = field(default_factory=Address)
    users: int = 120
    seed: int = 0
    """Of tastes, places and moods."""
    requests: int | None = None
    """End after so many requests; none: no bound."""
    seconds: float | None = None
    """End after so long; none: no bound."""
    speed: float = 20.0
    """How many times faster than people they pause, type and decide; the server's time is not scaled."""
    rate: float = 0.0
    """Most requests a second; 0: as many as the concurrency lets through."""
    concurrency: int = 16
    """Developers who type at the same time."""
    first_visit: int = 0
    """Number of the first visit: a later run goes on where an earlier one stopped, at other places."""
    quirks: Quirks = field(default_factory=Quirks)
    examples: int = 200
    """Suggestions kept for a report."""
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Keeps the editors' completion ids of two runs apart."""


@dataclass(frozen=True)
class Pair:
    """A developer at a place, once with each pin."""

    user: str
    visit: int
    outcomes: tuple[Outcome, ...]
    """One a pin, in the order of Paired.pins."""


@dataclass(frozen=True)
class Paired:
    """The same developers at the same places with each of several versions."""

    pins: tuple[str, ...]
    pairs: tuple[Pair, ...]
    """Every place that all pins answered."""
    tallies: tuple[Tally, ...]
    """One a pin, of all that it answered."""
    dropped: int
    """Places at which a pin gave no answer; left out for all of them."""

    def by_user(self, value: Callable[[Outcome], float]) -> dict[str, tuple[int, tuple[float, ...]]]:
        """For each developer, the places and each pin's sum of `value`: what a comparison clustered by user needs."""
        places: Counter[str] = Counter(pair.user for pair in self.pairs)
        sums = {user: [0.0] * len(self.pins) for user in places}
        for pair in self.pairs:
            for index, outcome in enumerate(pair.outcomes):
                sums[pair.user][index] += value(outcome)
        return {user: (places[user], tuple(sums[user])) for user in sorted(places)}


STEP_SECONDS = 0.2
"""How soon somebody who waits for a turn notices that the rate has changed."""


class Pacer:
    """Hands out turns: at most `rate()` a second, at most `requests`, none after `seconds` or once stopped."""

    def __init__(
        self, requests: int | None, seconds: float | None, rate: Callable[[], float], stop: asyncio.Event | None
    ) -> None:
        self._left = requests
        self._last = time.monotonic()
        self._end = None if seconds is None else self._last + seconds
        self._rate, self._stop = rate, stop
        self._line = asyncio.Lock()

    async def __call__(self) -> bool:
        """Wait for a turn; false when there are no more."""
        if self.over:
            return False
        if self._left is not None:
            self._left -= 1
        async with self._line:
            # In small steps, since the rate changes: who waits for a slow turn would sleep on into a fast time.
            while (turn := self._last + self._apart) > time.monotonic() and not self._stopped:
                await asyncio.sleep(min(turn - time.monotonic(), STEP_SECONDS))
            self._last = max(turn, time.monotonic() - 1.0)
        return not self._stopped

    @property
    def _apart(self) -> float:
        rate = self._rate()
        return 1 / rate if rate > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether there are no more turns."""
        return self._stopped or (self._left is not None and self._left <= 0)

    @property
    def _stopped(self) -> bool:
        late = self._end is not None and time.monotonic() >= self._end
        return late or (self._stop is not None and self._stop.is_set())


class Background:
    """Events under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, work: Awaitable[None]) -> None:
        """Have it done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for all of it; an error in it is the caller's."""
        while self._tasks:
            await asyncio.gather(*self._tasks)


async def run(
    settings: Run,
    code: Code,
    *,
    stop: asyncio.Event | None = None,
    progress: Callable[[Tally], None] | None = None,
    decided: Callable[[Decision], None] | None = None,
    rate: Callable[[], float] | None = None,
) -> Tally:
    """Let developers type until the run is over; every event due is sent before it returns.

    `stop` ends it early, `progress` gets the sums about once a second, `decided` every decision with its truth; `rate` gives
    the most requests a second from moment to moment, in place of the settings' own.
    """
    began = time.monotonic()
    ledger, background = Ledger(settings.examples), Background()
    pacer = Pacer(settings.requests, settings.seconds, rate or (lambda: settings.rate), stop)
    schedule = Schedule(settings.users, settings.seed, code, settings.quirks, "live")
    visits = iter(range(settings.first_visit, 2**62))
    async with connect(settings.concurrency) as session:
        desk = Desk(
            wire=Wire(session, settings.address),
            ledger=ledger,
            quirks=settings.quirks,
            speed=settings.speed,
            run_id=settings.run_id,
            pace=pacer,
            background=background,
            decided=decided or (lambda decision: None),
        )

        async def type_on() -> None:
            while not pacer.over:
                number = next(visits)
                developer, key, place = schedule.visit(number)
                await Visit(desk, developer, number, key, place).go()

        async with _telling(progress, lambda: ledger.tally(time.monotonic() - began)), asyncio.TaskGroup() as group:
            for _ in range(settings.concurrency):
                group.create_task(type_on())
        await background.finish()
    return ledger.tally(time.monotonic() - began)


async def measure(
    settings: Run,
    code: Code,
    pins: Sequence[str],
    visits: int,
    *,
    stop: asyncio.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> Paired:
    """Meet the same developers at the same places with each pinned version; nobody types over, no event is sent.

    The places are others than those of a live run with the same seed. `progress` gets the places done so far.
    """
    began = time.monotonic()
    ledgers = [Ledger(settings.examples) for _ in pins]
    pacer = Pacer(None, settings.seconds, lambda: settings.rate, stop)
    schedule = Schedule(settings.users, settings.seed, code, settings.quirks, "paired")
    numbers = iter(range(settings.first_visit, settings.first_visit + visits))
    pairs: list[Pair] = []
    done = 0
    async with connect(settings.concurrency) as session:
        wire = Wire(session, settings.address)

        async def work() -> None:
            nonlocal done
            for number in numbers:
                outcomes: dict[int, Outcome | None] = {}
                look = schedule.look(number)
                for turn in range(len(pins)):
                    index = (number + turn) % len(pins)  # which goes first takes turns
                    if not await pacer():
                        return
                    outcomes[index] = await _look(wire, look, pins[index], ledgers[index])
                answered = tuple(outcome for index in range(len(pins)) if (outcome := outcomes[index]) is not None)
                done += 1
                if len(answered) == len(pins):
                    pairs.append(Pair(look.developer.name, number, answered))
                if progress is not None:
                    progress(done)

        async with asyncio.TaskGroup() as group:
            for _ in range(settings.concurrency):
                group.create_task(work())
    tallies = tuple(ledger.tally(time.monotonic() - began) for ledger in ledgers)
    ordered = tuple(sorted(pairs, key=lambda pair: pair.visit))
    return Paired(tuple(pins), ordered, tallies, done - len(ordered))


async def _look(wire: Wire, look: Look, pin: str, ledger: Ledger) -> Outcome | None:
    """One developer's judgement of one version at one place; none when there was no answer."""
    user = look.developer.name
    answer = await wire.complete(user, look.prefix, look.suffix, pin=pin)
    ledger.add(user, pin, requests=1)
    if answer.error:
        ledger.add(user, pin, errors=1)
        return None
    outcome, judgement = look.judge(answer.text)
    if judgement is None:
        ledger.add(user, pin, nothing=1)
        return outcome
    accepted, text = judgement.accepted, outcome.shown
    ledger.add(
        user,
        pin,
        shown=1,
        judged=1,
        accepted=int(accepted),
        rejected=int(not accepted),
        shown_characters=len(text),
        accepted_characters=len(text) * accepted,
        kept_characters=judgement.opinion.right * accepted,
    )
    before = "\n".join(look.prefix.split("\n")[-2:])
    ledger.show(Example(user, pin, look.place.file, before, text, look.place.truth, accepted, judgement.opinion.reason))
    return outcome


class _telling:
    """Calls `progress` about once a second while the block runs."""

    def __init__(self, progress: Callable[[Tally], None] | None, tally: Callable[[], Tally]) -> None:
        self._progress, self._tally = progress, tally
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._progress is not None:
            self._task = asyncio.create_task(self._tell(self._progress))

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell(self, progress: Callable[[Tally], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            progress(self._tally())
