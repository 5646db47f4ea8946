"""The requests that a cycle learns from: the completions, the developers' answers, and the settled text that hindsight mines.

An *open* stream has the requests of developers who accept nothing: the finished file's text is written whatever was shown, and
the answer to each completion is known beside it. A *closed* one (loop.py) has requests of developers whose accepted text stands.
A developer is in one file at a time, and a file has one developer at a time, so each session begins once its developer and its
file are free. Times are the developers' own, in seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

import polars as pl

from evals.developers import Pause, Schedule
from evals.developers.alternatives import end_of_lines
from evals.developers.people import Attention
from evals.developers.plausible import quality
from evals.developers.seen import Seen, see, typed_meanwhile
from evals.developers.tally import Counts, costs
from evals.studies.recipes.policy import UNKNOWN, Policy, Served, Shares
from infra.settings import Settings
from infra.settings.schema import Hindsight
from tasks.labels import hindsight
from tasks.rewards.acceptance import verdict_on

QUIET_SECONDS, MOST_SECONDS = 10.0, 300.0
"""As a production's collect.hindsight: the stream's clock is the developers' own."""
BETWEEN_SECONDS = 30.0
"""From a session's last request to the next session of its developer, or in its file."""
BEHIND = 400
"""Requests read after an update's own: they show the settled text of the last ones."""
PROJECT = "bench"
SERVED_SECONDS = 0.1
"""From a request to its answer."""

Outcome = Literal["accepted", "rejected", "nothing", "unjudged"]
"""nothing: the policy completed nothing. unjudged: no editor reported, or nothing was shown though something was completed."""


@dataclass(frozen=True)
class Request:
    """A request, its completion, and the developer's answer."""

    user: str
    time: float
    prefix: str
    suffix: str
    prompt: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()  # all that was sampled
    logprobs: tuple[float, ...] = ()
    ends: tuple[int, ...] = ()  # characters of the text up to each token
    temperature: float = 0.0
    text: str = ""
    served: int = 0  # tokens that were sent to the editor
    outcome: Outcome = "unjudged"
    shown: str = ""  # the part of the text that the developer saw
    acceptance: Shares = UNKNOWN  # accepted share of the user's earlier completions, and of the project's
    settled: str | None = None  # the settled text that later requests show; None: unknown
    whole: bool = False
    there: str | None = None  # all that stands at the place (hindsight.STANDS)
    stands: bool = False  # the accepted text stands in place of another that the developer would have written
    quality: float | None = None
    """Hidden quality of an accepted text, 0 to 1, which neither server nor trainer sees; None: nothing was accepted."""

    @property
    def verdict(self) -> bool | None:
        """Whether the developer accepted what was shown; None where that is no verdict to fit on."""
        return verdict_on(self.outcome, self.shown, (self.settled or "")[self.typed :], self.whole)

    @property
    def extent(self) -> int:
        """Characters of the text up to the end of the shown part; 0 where that is empty, or no part of it."""
        begin = self.text.find(self.shown)
        return begin + len(self.shown) if begin >= 0 else 0

    @property
    def typed(self) -> int:
        """Characters at the begin of the settled text that were typed before the rest was shown, on which the answer is."""
        return self._kept[0]

    @property
    def kept(self) -> int | None:
        """Shown characters (of a completion that nobody judged: of all) that stand at the place; None: unknown."""
        return self._kept[1]

    @property
    def _kept(self) -> tuple[int, int | None]:
        """`typed` and `kept`, as a cycle counts them."""
        if self.outcome == "unjudged":
            return hindsight.kept_of("", self.text.rstrip(), self.there)
        return hindsight.kept_of(self.text[: max(self.text.find(self.shown), 0)], self.shown.rstrip(), self.there)


@dataclass(frozen=True)
class Stream:
    """The requests of a cycle, in order of time."""

    requests: tuple[Request, ...]
    counts: Counts = field(default_factory=Counts)
    """Of all requests that were sent, those after the cycle's own too."""
    next_session: int = 0
    """Session that the next cycle begins with."""
    aggregates: Mapping[str, float] = field(default_factory=dict)
    """Shares by name (evals/developers/aggregates.py), of a closed loop."""


def timed(pauses: Sequence[Pause]) -> Iterator[tuple[float, Pause]]:
    """Yield each pause of some sessions with the time of its request."""
    free: dict[tuple[str, str], float] = {}
    for _, session in groupby(pauses, key=lambda pause: pause.visit):
        asked = list(session)
        keys = ("user", asked[0].developer.name), ("file", asked[0].position.file)
        begin = max(free.get(key, 0.0) for key in keys)
        free |= dict.fromkeys(keys, begin + asked[-1].asked + BETWEEN_SECONDS)
        yield from ((begin + pause.asked, pause) for pause in asked)


def open_stream(schedule: Schedule, first: int, count: int, policy: Policy | None, settings: Settings, seed: int) -> Stream:
    """Return `count` requests of developers who accept nothing, from pause number `first` on.

    `policy`: completes the requests, whose answers are known then; None: nothing is completed.
    """
    pauses = [schedule.first_pause(number) for number in range(first, first + count + BEHIND)]
    requests = [Request(pause.developer.name, time, pause.prefix, pause.suffix) for time, pause in timed(pauses)]
    counts, attention = Counts(), Attention(None)
    if policy is not None:
        contexts, keys = [(one.prefix, one.suffix) for one in requests[:count]], [(seed, number) for number in range(count)]
        for number, served in enumerate(policy.complete(contexts, keys)):
            pause, time = pauses[number], requests[number].time
            seen = see(pause, served.text, typed_meanwhile(pause), attention, SERVED_SECONDS)
            requests[number] = answered(pause, time, served, seen, UNKNOWN)
            counts += counted(seen)
    most = settings.serving.sampling.max_tokens
    return Stream(tuple(settle(requests, count, settings.collect.hindsight, most)), counts)


def answered(pause: Pause, time: float, served: Served, seen: Seen, acceptance: Shares) -> Request:
    """Return a request with its answer."""
    made = served.completion
    return Request(
        user=pause.developer.name,
        time=time,
        prefix=pause.prefix,
        suffix=pause.suffix,
        prompt=made.prompt,
        tokens=made.tokens,
        logprobs=tuple(min(value, 0.0) for value in made.logprobs),
        ends=tuple(served.ends),
        temperature=served.temperature,
        text=served.whole,
        served=served.tokens,
        outcome=outcome_of(pause, served, seen),
        shown=seen.shown,
        acceptance=acceptance,
        stands=seen.stands,
        quality=quality_of(seen),
    )


def outcome_of(pause: Pause, served: Served, seen: Seen) -> Outcome:
    """Return the label that the editor's report gives a completion."""
    if seen.kind == "nothing" and not served.whole.strip():
        return "nothing"
    if seen.kind != "shown" or pause.developer.silent or pause.draws.superseded:
        return "unjudged"
    return "accepted" if seen.accepted else "rejected"


def quality_of(seen: Seen) -> float | None:
    """Return the hidden quality of an accepted text beside the text that the file's author wrote there."""
    if not seen.accepted:
        return None
    lines = seen.shown.rstrip().count("\n") + 1
    return quality(seen.shown, seen.truth[: end_of_lines(seen.truth, lines)])


def counted(seen: Seen) -> Counts:
    if seen.kind != "shown":
        return Counts(requests=1, cancelled=int(seen.kind == "cancelled"), nothing=int(seen.kind == "nothing"))
    accepted, size = int(seen.accepted), len(seen.shown)
    own = {"accepted": accepted, "rejected": 1 - accepted, "accepted_characters": size * accepted, "kept_characters": seen.kept}
    return Counts(requests=1, shown=1, judged=1, shown_characters=size, **own, **costs(seen))


def settle(requests: Sequence[Request], count: int, settings: Hindsight, most: int) -> Iterator[Request]:
    """Yield the first `count` requests with the settled texts that all of them show.

    Args:
        settings: collect.hindsight; its seconds are replaced by those of people.
        most: maximum tokens of a completion.
    """
    rows = [
        {
            **{"id": str(number), "time": one.time, "project": PROJECT, "user": one.user, "prefix": one.prefix},
            **{"suffix": one.suffix, "text": one.text, "max_tokens": most, "opted_out": False, "redacted": False},
            **{"client": "continue", "file": ""},  # neither Continue nor Zed sends the file of a request
        }
        for number, one in enumerate(requests)
    ]
    people = settings.model_copy(update={"quiet_seconds": QUIET_SECONDS, "most_seconds": MOST_SECONDS})
    found = hindsight.settle(pl.DataFrame(rows), pl.Series([str(number) for number in range(count)]), people)
    columns = found.select("id", "settled", "settled_whole", hindsight.STANDS).iter_rows()
    labels = {int(number): (text, bool(whole), stands) for number, text, whole, stands in columns}
    for number, one in enumerate(requests[:count]):
        text, whole, there = labels[number]
        yield replace(one, settled=text, whole=whole, there=there)
