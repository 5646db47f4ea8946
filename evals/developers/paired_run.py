"""A paired run: the same developers meet several pinned versions at the same positions of a ground."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evals.developers.grounds import Ground
from evals.developers.live_run import RunSettings
from evals.developers.pacer import Pacer
from evals.developers.pause import ExpectedOutcome, Pause
from evals.developers.protocol import Pin
from evals.developers.schedule import Schedule
from evals.developers.tally import Example, Ledger, Tally
from evals.developers.transport import EditorClient, connect
from tasks.evaluation.positions import Code


@dataclass(frozen=True)
class Pair:
    """A developer at a position, once with each pin."""

    user: str
    visit: int
    outcomes: tuple[ExpectedOutcome, ...]  # one for each pin, in the order of PairedRun.pins
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
    stop: asyncio.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> PairedRun:
    """Show completions of each pinned version to the same developers at the same positions of a ground.

    Developers do not type over answers and send no events. `progress` receives the number of positions done so far.

    Raises:
        ValueError: the code holds no position of the ground.
    """
    began = time.monotonic()
    ledgers = [Ledger(settings.examples) for _ in pins]
    pacer = Pacer(None, settings.seconds, lambda: settings.rate, stop)
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
                    outcomes[index] = await _outcome(client, pause, pins[index], ledgers[index])
                answered = tuple(outcome for index in range(len(pins)) if (outcome := outcomes[index]) is not None)
                done += 1
                if len(answered) == len(pins):
                    expected, ids = zip(*answered, strict=True)
                    pairs.append(Pair(pause.developer.name, number, expected, ids))
                if progress is not None:
                    progress(done)

        async with asyncio.TaskGroup() as group:
            for _ in range(settings.concurrency):
                group.create_task(run_pauses())
    tallies = tuple(ledger.tally(time.monotonic() - began) for ledger in ledgers)
    ordered = tuple(sorted(pairs, key=lambda pair: pair.visit))
    return PairedRun(tuple(pins), ordered, tallies, done - len(ordered))


async def _outcome(client: EditorClient, pause: Pause, pin: Pin, ledger: Ledger) -> tuple[ExpectedOutcome, str] | None:
    """Return the expected outcome of one pin at one pause and the completion's id; None without an answer."""
    user, version = pause.developer.name, pin.version
    answer = await client.complete(user, pause.prefix, pause.suffix, pin=pin)
    ledger.add(user, version, requests=1)
    if answer.error:
        ledger.add(user, version, errors=1)
        return None
    outcome, choice = pause.answer(answer.text)
    if choice is None:
        ledger.add(user, version, nothing=1)
        return outcome, answer.completion_id
    accepted, text = choice.accepted, outcome.shown
    ledger.add(
        user,
        version,
        shown=1,
        judged=1,
        accepted=int(accepted),
        rejected=int(not accepted),
        shown_characters=len(text),
        accepted_characters=len(text) * accepted,
        kept_characters=outcome.kept * accepted,
    )
    before = "\n".join(pause.prefix.split("\n")[-2:])
    position = pause.position
    ledger.add_example(Example(user, version, position.file, before, text, position.truth, accepted, choice.opinion.reason))
    return outcome, answer.completion_id
