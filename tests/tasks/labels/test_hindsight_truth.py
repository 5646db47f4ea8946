"""Settled text mined from the requests of simulated developers, against what they really wrote."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import polars as pl
import pytest

from evals.developers import Pause, Schedule, SettledTruth, code_from
from evals.developers.writer import Reaction
from infra.records import Completion
from infra.settings.schema import Hindsight
from tasks.labels import hindsight
from tasks.labels.hindsight import ANCHOR_CHARACTERS
from tests.tasks import rows
from tests.tasks.made import NOW, completion

SESSIONS, ACCEPTED = 150, 0.2
QUIET, MOST = 10.0, 300.0


@dataclass(frozen=True)
class Asked:
    """A request of a developer, and what became of its place."""

    id: str
    session: int
    time: float
    pause: Pause
    truth: SettledTruth


@cache
def written() -> tuple[Asked, ...]:
    """The requests of sessions, an hour apart; developers accept what is right now and then."""
    schedule, rng = Schedule(40, 3, code_from()), random.Random(0)
    return tuple(asked for number in range(SESSIONS) for asked in _session(schedule, number, rng))


def _session(schedule: Schedule, number: int, rng: random.Random) -> Iterator[Asked]:
    session, truths, asked = schedule.session(number), {}, []
    writer = schedule.writer(session, session.draft(), lambda pause, truth: truths.update({id(pause): truth}))
    steps, reaction, now = writer.steps(), None, NOW + 10_000.0 * number
    while True:
        try:
            step = steps.send(reaction)
        except StopIteration:
            break
        reaction = None
        if isinstance(step, float):
            now += step
            continue
        asked.append((step, now))
        accepts = step.way == "writes" and rng.random() < ACCEPTED
        reaction = Reaction("accepted", inserted=step.position.truth) if accepts else Reaction("rejected")
    for at, (pause, time) in enumerate(asked):
        yield Asked(f"{number}-{at}", number, time, pause, truths[id(pause)])


def settled(named: bool) -> dict[str, str | None]:
    """The settled text of each request; `named`: the editor names the file."""
    requests = [
        completion(
            asked.id,
            time=asked.time,
            user=asked.pause.developer.name,
            project="p",
            prefix=asked.pause.prefix,
            suffix=asked.pause.suffix,
            file=asked.pause.position.file if named else "",
        )
        for asked in written()
    ]
    wanted = pl.Series([asked.id for asked in written()])
    found = hindsight.settle(rows.frame(requests, Completion), wanted, Hindsight(quiet_seconds=QUIET, most_seconds=MOST))
    return {row["id"]: row["settled"] for row in found.iter_rows(named=True)}


def first_line(text: str) -> str:
    return text.split("\n")[0]


def continues(asked: Asked) -> bool:
    """Whether a request further on in the same file, within the time of a label, shows what was written at the place."""
    position = asked.pause.position
    end = position.offset + len(first_line(position.truth))
    return any(
        asked.session == later.session
        and asked.time + QUIET <= later.time <= asked.time + MOST
        and later.pause.position.file == position.file
        and later.pause.position.offset >= end
        for later in written()
    )


@pytest.mark.parametrize("named", [True, False])
def test_what_is_trained_on_was_written_there(named: bool) -> None:
    """99 % of the labels, of which the first line is trained on, are the developer's own; none is right where the place went."""
    labels = [(label, asked.truth) for asked in written() if (label := settled_of(named, asked)) is not None]
    right = [
        any(text is not None and first_line(text) == first_line(label) for text in (truth.text, truth.first))
        for label, truth in labels
    ]
    assert len(labels) > 1000
    assert sum(right) >= 0.99 * len(labels)


@pytest.mark.parametrize("named", [True, False])
def test_a_place_whose_continuation_is_requested_has_a_label(named: bool) -> None:
    wanted = [asked for asked in written() if asked.truth.kind in ("typed", "accepted", "rewritten") and continues(asked)]
    if not named:  # the begin of an unnamed file might be that of any other
        wanted = [asked for asked in wanted if len(asked.pause.prefix) >= ANCHOR_CHARACTERS]
    assert len(wanted) > 1000
    assert sum(settled_of(named, asked) is not None for asked in wanted) >= 0.9 * len(wanted)


def test_every_line_of_a_label_stands_in_the_finished_file() -> None:
    """A truth ends with its hole. A label goes on to the suffix of the request, through holes that were written in between."""
    files = {source.name: source.text for source in code_from().sources}
    labels = [(label, asked) for asked in written() if (label := settled_of(False, asked)) is not None]
    begins = [any(text is not None and text.startswith(label) for text in (a.truth.text, a.truth.first)) for label, a in labels]
    stands = [in_order(label, files[asked.pause.position.file][asked.pause.position.offset :]) for label, asked in labels]
    assert 0.75 < sum(begins) / len(begins) < 0.9
    assert sum(map(max, begins, stands)) >= 0.99 * len(labels)


def in_order(label: str, finished: str) -> bool:
    """Whether the lines of a label, the first from its begin on, are lines of the finished text, in order."""
    rest = iter(finished.split("\n"))
    return all(line in rest for line in label.rstrip("\n").split("\n"))


@cache
def _labels(named: bool) -> dict[str, str | None]:
    return settled(named)


def settled_of(named: bool, asked: Asked) -> str | None:
    return _labels(named)[asked.id]
