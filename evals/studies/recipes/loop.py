"""A closed loop: developers who meet the completions of a model as it serves, whose accepted text becomes the file.

Many sessions go on at once, so that the model completes in batches: each round, every session writes up to its next request, the
model answers all of them, and each developer reacts. A session begins once its developer and its file are free, as in a live run,
so the order of rounds changes nothing in a session. Each cycle begins with the files as planned and with rested developers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evals.developers import Pause, Schedule, SettledTruth
from evals.developers.aggregates import Collected, Times, aggregates
from evals.developers.people import Attention
from evals.developers.seen import Seen, see, typed_meanwhile
from evals.developers.sessions import Draft, Session
from evals.developers.tally import Counts
from evals.developers.writer import Reaction, Steps, Writer
from evals.studies.recipes.policy import Context, Key, Served, Shares
from evals.studies.recipes.stream import BETWEEN_SECONDS, PROJECT, SERVED_SECONDS, Request, Stream, answered, counted, settle
from infra.model.past_acceptance import PastAcceptance
from infra.settings.schema import Hindsight

AT_ONCE = 48
"""Sessions that go on at once."""
MOST_WAITING = 100
"""Sessions that may wait for their developer or file; those that wait when the cycle ends are written by nobody."""


class Answers(Protocol):
    """What answers requests: a policy, or a test's."""

    @property
    def most(self) -> int:
        """Maximum tokens of a completion."""

    def complete(self, contexts: Sequence[Context], keys: Sequence[Key], shares: Sequence[Shares] = ()) -> list[Served]:
        """Return the completion of each context."""


@dataclass
class _Running:
    session: Session
    draft: Draft
    writer: Writer
    steps: Steps
    begin: float
    asked: int = 0  # requests so far
    pause: Pause | None = None  # where the developer waits; None once they have left

    def go_on(self, reaction: Reaction | None) -> None:
        """Write on to the next pause."""
        try:
            while isinstance(step := self.steps.send(reaction), float):
                reaction = None
        except StopIteration:
            self.pause = None
        else:
            self.pause = step


@dataclass
class _Free:
    """When each developer and file is free, and who waits for one."""

    times: dict[tuple[str, str], float] = field(default_factory=dict)
    taken: set[tuple[str, str]] = field(default_factory=set)
    waiting: list[Session] = field(default_factory=list)

    def take(self, following: Callable[[], Session]) -> Session | None:
        """Return the first session that can begin: no earlier one that waits, nor one that goes on, has its developer or file."""
        blocked = set(self.taken)
        for session in self.waiting:
            if blocked.isdisjoint(keys_of(session)):
                self.waiting.remove(session)
                self.taken.update(keys_of(session))
                return session
            blocked.update(keys_of(session))
        while len(self.waiting) < MOST_WAITING:
            session = following()
            if blocked.isdisjoint(keys_of(session)):
                self.taken.update(keys_of(session))
                return session
            self.waiting.append(session)
            blocked.update(keys_of(session))
        return None

    def leave(self, session: Session, time: float) -> None:
        """Note that a session ended."""
        self.taken.difference_update(keys_of(session))
        self.times |= dict.fromkeys(keys_of(session), time + BETWEEN_SECONDS)


def keys_of(session: Session) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the names of a session's developer and file."""
    return ("user", session.developer.name), ("file", session.source.name)


class Loop:
    """A cycle's developers, and the policy that serves them."""

    def __init__(self, schedule: Schedule, first_session: int, count: int, policy: Answers, seed: int) -> None:
        self._schedule, self._next, self._count, self._policy, self._seed = schedule, first_session, count, policy, seed
        self._free, self._past = _Free(), PastAcceptance()
        self._attention = defaultdict[str, Attention](lambda: Attention(schedule.quirks.people))
        self._drafts: dict[str, tuple[int, Draft]] = {}
        self._requests: list[Request] = []
        self._counts, self._collected = Counts(), Collected()
        self._unsettled: dict[int, Seen] = {}
        """Reactions whose text has not settled, by the id of the pause."""

    def run(self, settings: Hindsight) -> Stream:
        """Return the first `count` requests; the sessions go on to their end, so that the last ones settle."""
        running: list[_Running] = []
        while True:
            while len(running) < AT_ONCE and len(self._requests) < self._count:
                if (session := self._free.take(self._following)) is None:
                    break
                running.append(self._begin(session))
            if not running:
                break
            self._round(running)
            for one in [one for one in running if one.pause is None]:
                running.remove(one)
                self._end(one)
        ordered = sorted(self._requests, key=lambda one: (one.time, one.user))
        settled = settle(ordered, min(self._count, len(ordered)), settings, self._policy.most)
        found = aggregates(self._collected, Times.of(self._counts))
        known = {one.name: one.simulated for one in found if not math.isnan(one.simulated)}
        return Stream(tuple(settled), self._counts, self._next, known)

    def _following(self) -> Session:
        self._next += 1
        return self._schedule.session(self._next - 1)

    def _begin(self, session: Session) -> _Running:
        name = session.source.name
        if self._drafts.get(name, (-1,))[0] != session.round:
            self._drafts[name] = session.round, session.draft()
        draft = self._drafts[name][1]
        writer = self._schedule.writer(session, draft, self._settled)
        begin = max(self._free.times.get(key, 0.0) for key in keys_of(session))
        one = _Running(session, draft, writer, writer.steps(), begin)
        one.go_on(None)
        return one

    def _settled(self, pause: Pause, truth: SettledTruth) -> None:
        """Count a suggestion once the text at its place has settled."""
        seen = self._unsettled.pop(id(pause), None)
        if seen is not None and seen.opinion is not None:
            self._collected.add(seen.shown, seen.truth, seen.accepted, seen.opinion.reason, truth)

    def _end(self, one: _Running) -> None:
        self._free.leave(one.session, one.begin + one.writer.clock)
        self._counts += Counts(written_keys=one.writer.keys, writing_ms=round(1e3 * one.writer.clock))

    def _round(self, running: Sequence[_Running]) -> None:
        """Answer the request of each session, and let each go on to its next."""
        asking = []
        for one in running:
            while one.pause is not None and self._attention[one.session.developer.name].off:
                self._attention[one.session.developer.name].silence()
                self._counts += Counts(off=1)
                one.go_on(Reaction("nothing"))
            if one.pause is not None:
                asking.append((one, one.pause))
        contexts = [(pause.prefix, pause.suffix) for _, pause in asking]
        keys = [(self._seed, one.session.number, one.asked) for one, _ in asking]
        shares = [self._past.shares(PROJECT, pause.developer.name) for _, pause in asking]
        answers = self._policy.complete(contexts, keys, shares) if asking else []
        for (one, pause), known, served in zip(asking, shares, answers, strict=True):
            one.asked += 1
            one.go_on(self._react(one, pause, known, served))

    def _react(self, one: _Running, pause: Pause, known: Shares, served: Served) -> Reaction:
        seen = see(pause, served.text, typed_meanwhile(pause), self._attention[pause.developer.name], SERVED_SECONDS)
        request = answered(pause, one.begin + pause.asked, served, seen, known)
        self._requests.append(request)
        self._unsettled[id(pause)] = seen
        self._counts += counted(seen)
        if request.outcome in ("accepted", "rejected"):
            self._past.add(PROJECT, pause.developer.name, request.outcome == "accepted")
        return seen.reaction("rejected" if seen.kind == "shown" else seen.kind)
