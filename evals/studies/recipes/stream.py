"""The requests of simulated developers in order of time, and the settled text that hindsight mines from them.

No completion is accepted in this stream. A developer is in one file at a time, and a file has one developer at a time, so each
session begins once its developer and its file are free. Times are the developers' own, in seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import polars as pl

from evals.developers import Pause, Schedule
from infra.settings.schema import Hindsight
from tasks.labels import hindsight

QUIET_SECONDS, MOST_SECONDS = 10.0, 300.0
"""As a production's collect.hindsight: the stream's clock is the developers' own."""
BETWEEN_SECONDS = 30.0
"""From a session's last request to the next session of its developer, or in its file."""
BEHIND = 400
"""Requests read after an update's own: they show the settled text of the last ones."""
PROJECT = "bench"


@dataclass(frozen=True)
class Label:
    """A settled text."""

    text: str
    whole: bool


def timed(pauses: Sequence[Pause]) -> Iterator[tuple[float, Pause]]:
    """Yield each pause of some sessions with the time of its request."""
    free: dict[tuple[str, str], float] = {}
    for _, session in groupby(pauses, key=lambda pause: pause.visit):
        asked = list(session)
        keys = ("user", asked[0].developer.name), ("file", asked[0].position.file)
        begin = max(free.get(key, 0.0) for key in keys)
        free |= dict.fromkeys(keys, begin + asked[-1].asked + BETWEEN_SECONDS)
        yield from ((begin + pause.asked, pause) for pause in asked)


def mined(schedule: Schedule, first: int, count: int, settings: Hindsight, max_tokens: int) -> Mapping[int, Label]:
    """Return the settled texts of `count` pauses from number `first` on, by their index.

    `settings`: collect.hindsight; its seconds are replaced by those of people. `max_tokens`: limit of a completion.
    """
    pauses = [schedule.first_pause(number) for number in range(first, first + count + BEHIND)]
    rows = [
        {
            **{"id": str(number), "time": time, "project": PROJECT, "user": pause.developer.name, "prefix": pause.prefix},
            **{"suffix": pause.suffix, "max_tokens": max_tokens, "opted_out": False, "redacted": False},
            "file": "",  # neither Continue nor Zed sends the file of a request
        }
        for number, (time, pause) in enumerate(timed(pauses))
    ]
    people = settings.model_copy(update={"quiet_seconds": QUIET_SECONDS, "most_seconds": MOST_SECONDS})
    found = hindsight.settle(pl.DataFrame(rows), pl.Series([str(number) for number in range(count)]), people)
    labels = found.drop_nulls("settled").select("id", "settled", "settled_whole").iter_rows()
    return {int(number): Label(text, whole) for number, text, whole in labels}
