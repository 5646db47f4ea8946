"""A developer writes one session, without a server.

`Writer.steps` yields waits in seconds, in which the developer thinks, types or deletes, and pauses, and receives the reaction to
each pause. A live run sends the pauses to a server; a bench answers each with `Reaction("rejected")`. Every chance event is drawn
for its line and its stop, so the answers shift no other draw: text that an accepted completion wrote is not written again, and
the pauses planned in it fall away.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from evals.developers import draws, editor
from evals.developers.draws import REJECTED_AFTER_SECONDS, LineDraws, Quirks, draws_at, line_draws, random_stream
from evals.developers.pause import EARLY_SECONDS, Kind, Pause, SettledTruth, Way
from evals.developers.sessions import Draft, Patch, Segment, Session
from evals.developers.taste import Opinion
from infra.model.kept_text import common_start
from infra.model.time_saved import keystrokes
from tasks.evaluation.positions import Position, column_at

DEBOUNCE_SECONDS = 0.35
CHARACTERS_PER_SECOND = 6.0
DELETED_PER_SECOND = 20.0
JUMP_SECONDS = 2.0
NAME = re.compile(r"[A-Za-z_]\w{2,}")
OnSettled = Callable[[Pause, SettledTruth], None]


@dataclass(frozen=True)
class Reaction:
    """The developer's reaction at a pause."""

    outcome: str  # accepted, rejected, unreported, nothing, cancelled or error
    typed: str = ""  # text of the truth that the developer typed while the answer streamed
    inserted: str = ""  # the accepted completion
    opinion: Opinion | None = None  # of the accepted completion; None: its right beginning stays, and the rest goes


T = TypeVar("T")
StepsTo = Generator[float | Pause, Reaction | None, T]
"""Yields waits in seconds and pauses, and receives None after a wait and a reaction after a pause."""
Steps = StepsTo[None]


@dataclass(eq=False)
class Request:
    """A request whose text may still change."""

    pause: Pause
    hole: int
    start: int  # offset of the cursor in the hole
    stop: int  # offset at which the request's suffix begins
    asked: float
    edited: float | None = None  # end of the last edit in its text
    accepted: str = ""  # the completion that was accepted there
    pasted: bool = False
    first: str | None = None  # its text when it was quiet for the first time
    early: str | None = None  # its text EARLY_SECONDS after the request


class Settling:
    """Follows each request of a session until its text settles, by the developer's own clock."""

    def __init__(self, draft: Draft, quiet_seconds: float, most_seconds: float, on_settled: OnSettled) -> None:
        self._draft, self._quiet, self._most, self._on_settled = draft, quiet_seconds, most_seconds, on_settled
        self._requests: list[Request] = []

    def follow(self, request: Request) -> Request:
        self._requests.append(request)
        return request

    def edit(self, hole: int, at: int, began: float, ends: float, pasted: bool = False) -> None:
        """Settle what is due before an edit at an offset of a hole, then note the edit; call it before the draft changes."""
        for request in list(self._requests):
            if request.first is None and request.edited is not None and request.edited + self._quiet <= began:
                request.first = self._text(request)
            if request.early is None and request.asked + EARLY_SECONDS <= ends:
                request.early = self._text(request)
            if request.asked + self._most <= ends:
                self._settle(request, began)
            elif request.hole == hole and request.start <= at <= request.stop:
                request.edited, request.pasted = ends, request.pasted or pasted

    def deleted(self, request: Request, now: float) -> None:
        """Settle a request whose text before the cursor goes."""
        if request in self._requests:
            self._requests.remove(request)
            self._on_settled(
                request.pause, SettledTruth(None, False, "deleted", now - request.asked, request.first, request.early)
            )

    def deleted_between(self, hole: int, start: int, end: int, now: float) -> None:
        """Settle the requests whose text before the cursor is written again from offset `start` on."""
        for request in [request for request in self._requests if request.hole == hole and start < request.start <= end]:
            self.deleted(request, now)

    def resized(self, hole: int, before: int, after: int) -> None:
        """Note that the hole's end moved, since a name in its unwritten rest is another one."""
        for request in self._requests:
            if request.hole == hole and request.stop == before:
                request.stop = after

    def finish(self, now: float) -> None:
        """Settle all requests: the developer leaves."""
        for request in list(self._requests):
            self._settle(request, now)

    def _settle(self, request: Request, now: float) -> None:
        self._requests.remove(request)
        text = self._text(request)
        whole = self._draft.is_complete(request.hole, request.start, request.stop)
        first, seconds = text if request.first is None else request.first, min(now - request.asked, self._most)
        early = text if request.early is None else request.early
        self._on_settled(request.pause, SettledTruth(text, whole, _kind(request, text), seconds, first, early))

    def _text(self, request: Request) -> str:
        return self._draft.between(request.hole, request.start, request.stop)


def _kind(request: Request, text: str) -> Kind:
    if not text:
        return "unfinished"
    if request.pasted:
        return "pasted"
    if request.accepted:
        return "accepted" if text.startswith(request.accepted) else "rewritten"
    return "typed"


@dataclass(frozen=True)
class _Wrong:
    """A piece to write again."""

    hole: int
    patch: Patch
    due: int  # number of lines written in the session at which the developer goes back to it


class Writer:
    """One session of one developer in one draft."""

    def __init__(self, session: Session, draft: Draft, quirks: Quirks, key: tuple[object, ...], on_settled: OnSettled) -> None:
        self._session, self._draft, self._quirks = session, draft, quirks
        self._key = (*key, session.round, session.source.name)
        self.settling = Settling(draft, quirks.quiet_seconds, quirks.settle_seconds, on_settled)
        self.clock = 0.0
        """Seconds of the developer's time since the session began."""
        self.keys = 0
        """Keys of the text that was written at the fronts of holes, by hand or by accepting."""
        self._wrong: list[_Wrong] = []
        self._lines = 0

    def steps(self) -> Steps:
        """Write the session's segments, correct the wrong pieces, and leave; changes the draft."""
        for segment in self._session.segments:
            yield from self._pass(JUMP_SECONDS)
            self._draft.open(segment.hole)
            for number in range(segment.first, segment.last):
                yield from self._line(segment, number)
                self._lines += 1
                yield from self._rewrite_due(self._lines)
        yield from self._rewrite_due(None)
        self.settling.finish(self.clock)

    def _line(self, segment: Segment, number: int) -> Steps:
        hole, draft = segment.hole, self._draft
        lines = draft.holes[hole].lines
        start, end = lines[number]
        rng = random_stream(*self._key, hole, number)
        chances = line_draws(rng, self._quirks)
        if draft.front(hole) >= end:
            return
        yield from self._pass(chances.thinks)
        if chances.pasted and number + 1 < segment.last:
            last = min(number + chances.pasted, segment.last) - 1
            yield from self._write(hole, lines[last][1], seconds=1.0, pasted=True)
            return
        text = draft.final(hole, start, end)
        indent = start + len(text) - len(text.lstrip())
        if chances.false_start >= 0 and number > 0 and draft.front(hole) <= indent:
            yield from self._write(hole, indent)
            yield from self._false_start(hole, number, chances)
        typed = yield from self._wrong_word(hole, number, chances)
        cursor = start + column_at(text, chances.column)
        if chances.pauses and max(typed, draft.front(hole)) <= cursor:
            yield from self._write(hole, cursor)
            last = min(number + chances.further_lines, len(lines) - 1)
            yield from self._pauses(hole, number, lines[last][1], chances.rewrite_after)
        yield from self._write(hole, end)

    def _pauses(self, hole: int, number: int, stop: int, rewrite_after: int) -> Steps:
        """Pause at the front of a hole, once or several times, about to write up to `stop`."""
        size = self._draft.holes[hole].size
        for turn in range(self._quirks.most_stops):
            front = self._draft.front(hole)
            truth = self._draft.final(hole, front, stop)
            if not truth.strip():
                return
            request, reaction = yield from self._ask(hole, front, size, truth, (number, "writes", turn))
            yield from self._write(hole, front + len(reaction.typed))
            if reaction.outcome == "accepted":
                yield from self._accept(request, reaction, rewrite_after)
                return
            if not (request.pause.draws.goes_on or reaction.outcome == "cancelled"):
                return
            if reaction.outcome != "cancelled":
                front = self._draft.front(hole)
                yield from self._write(hole, front + len(draws.next_word(self._draft.final(hole, front, stop))))

    def _ask(self, hole: int, offset: int, stop: int, truth: str, key: tuple[int, Way, int]) -> StepsTo[tuple[Request, Reaction]]:
        """Pause at an offset of a hole, about to write `truth`; after an accept, the time until the Tab has passed.

        The text up to offset `stop` is missing, and the suffix begins there.
        `key`: number of the line, the developer's action, and the number of the pause or, if they write again, the offset.
        """
        yield from self._pass(DEBOUNCE_SECONDS)
        draft, developer, (_, way, turn) = self._draft, self._session.developer, key
        before, after = draft.before(hole, offset), draft.after(hole, stop)
        position = Position(self._session.source.name, draft.holes[hole].start + offset, before, after, truth)
        prefix, suffix = editor.prompt_context(before, after)
        pause = Pause(
            developer=developer,
            position=position,
            prefix=prefix,
            suffix=suffix,
            rest=truth if way == "false start" else draft.final(hole, offset, stop),
            draws=draws_at(random_stream(*self._key, hole, *key), developer.taste, self._quirks),
            visit=self._session.number,
            way=way,
            stop=turn if way == "writes" else 0,
            asked=self.clock,
            people=self._quirks.people,
        )
        request = self.settling.follow(Request(pause, hole, offset, stop, self.clock))
        reaction = yield pause
        assert reaction is not None
        if reaction.outcome == "accepted":
            late = REJECTED_AFTER_SECONDS + pause.draws.late_seconds
            yield from self._pass(late if pause.draws.late else pause.draws.accept_seconds)
        return request, reaction

    def _accept(self, request: Request, reaction: Reaction, rewrite_after: int) -> Steps:
        """Insert a completion at the front of a hole; its wrong rest goes at once, or stays for some lines."""
        draft, hole = self._draft, request.hole
        front = draft.front(hole)
        request.accepted = reaction.typed + reaction.inserted
        if reaction.opinion is not None and reaction.opinion.reason in ("near", "alternative", "explored"):
            yield from self._take(request, reaction.inserted, reaction.opinion, rewrite_after)
            return
        right = front + common_start(reaction.inserted, draft.final(hole, front, request.stop))
        wrong = reaction.inserted[right - front :]
        self.settling.edit(hole, front, self.clock, self.clock)
        self._advance(hole, right)
        if not wrong:
            return
        line_end = next((end for _, end in draft.holes[hole].lines if end > right), right)
        patch = Patch(right, right, wrong)
        instead = draft.final(hole, right, line_end)
        if request.pause.draws.leaves_wrong and instead.strip() and "\n" not in wrong + instead:
            self._advance(hole, line_end)
            patch = Patch(right, line_end, wrong)
            draft.put(hole, patch)
            self._wrong.append(_Wrong(hole, patch, self._lines + rewrite_after))
            return
        draft.put(hole, patch)
        yield from self._pass(0.5 + len(wrong) / DELETED_PER_SECOND)
        self.settling.edit(hole, right, self.clock, self.clock)
        draft.drop(hole, patch)

    def _take(self, request: Request, inserted: str, opinion: Opinion, rewrite_after: int) -> Steps:
        """Insert a completion in place of the text in mind; it stands, or is edited at once or some lines later."""
        draft, hole = self._draft, request.hole
        front = draft.front(hole)
        patch = Patch(front, front + opinion.covered, inserted.rstrip())
        self.settling.edit(hole, front, self.clock, self.clock)
        self._advance(hole, patch.end)
        draft.put(hole, patch)
        if opinion.renamed:
            size = draft.holes[hole].size
            draft.rename(hole, patch.end, *opinion.renamed)
            self.settling.resized(hole, size, draft.holes[hole].size)
        if opinion.stands:
            return
        if request.pause.draws.leaves_wrong and "\n" not in patch.text:
            self._wrong.append(_Wrong(hole, patch, self._lines + rewrite_after))
            return
        yield from self._pass(0.5 + opinion.edit / CHARACTERS_PER_SECOND)
        self.settling.edit(hole, front, self.clock, self.clock)
        draft.drop(hole, patch)

    def _false_start(self, hole: int, number: int, chances: LineDraws) -> Steps:
        """Begin to write another line that stands above, pause, and delete it."""
        draft, front = self._draft, self._draft.front(hole)
        above = draft.holes[hole].lines[int(chances.false_start * number)]
        other = draft.final(hole, *above).strip()
        if len(other) < 2 or draft.final(hole, front).startswith(other):
            return
        cut = max(1, column_at(other, chances.column))
        patch = Patch(front, front, other[:cut])
        self.settling.edit(hole, front, self.clock, self.clock + cut / CHARACTERS_PER_SECOND)
        draft.put(hole, patch)
        yield from self._pass(cut / CHARACTERS_PER_SECOND)
        size = draft.holes[hole].size
        request, reaction = yield from self._ask(hole, front, size, other[cut:], (number, "false start", 0))
        standing = Patch(front, front, other[:cut] + reaction.typed + reaction.inserted)
        draft.drop(hole, patch)
        draft.put(hole, standing)
        yield from self._pass(0.5 + len(standing.text) / DELETED_PER_SECOND)
        self.settling.deleted(request, self.clock)
        draft.drop(hole, standing)

    def _wrong_word(self, hole: int, number: int, chances: LineDraws) -> StepsTo[int]:
        """Perhaps write the line up to a wrong word, to be corrected later. Return the end of that word, or 0."""
        draft, (start, end) = self._draft, self._draft.holes[hole].lines[number]
        if chances.wrong_word < 0 or draft.front(hole) > start:
            return 0
        words = list(NAME.finditer(draft.final(hole, start, end)))
        others = sorted({*NAME.findall(draft.final(hole, 0, start))} - {word.group() for word in words})
        if not words or not others:
            return 0
        word = words[int(chances.wrong_word * len(words))]
        yield from self._write(hole, start + word.end())
        patch = Patch(start + word.start(), start + word.end(), others[int(chances.column * len(others))])
        draft.put(hole, patch)
        self._wrong.append(_Wrong(hole, patch, self._lines + chances.rewrite_after))
        return start + word.end()

    def _rewrite_due(self, lines: int | None) -> Steps:
        """Write the wrong pieces again that are due after so many lines; None: all."""
        for wrong in [wrong for wrong in self._wrong if lines is None or wrong.due <= lines]:
            self._wrong.remove(wrong)
            if wrong.patch in self._draft.patches(wrong.hole):
                yield from self._rewrite(wrong.hole, wrong.patch)

    def _rewrite(self, hole: int, wrong: Patch) -> Steps:
        """Go back to a wrong piece, delete it with the rest of its line, and write it again."""
        draft = self._draft
        number, (_, end) = next((n, line) for n, line in enumerate(draft.holes[hole].lines) if line[1] >= wrong.end)
        end = min(end, draft.front(hole))
        yield from self._pass(JUMP_SECONDS)
        self.settling.edit(hole, wrong.start, self.clock, self.clock)
        self.settling.deleted_between(hole, wrong.start, end, self.clock)
        piece = Patch(wrong.start, end, "", open=True)
        draft.put(hole, piece)
        truth = draft.final(hole, wrong.start, end)
        request, reaction = yield from self._ask(hole, wrong.start, end, truth, (number, "again", wrong.start))
        written = reaction.typed + reaction.inserted
        request.accepted = written if reaction.outcome == "accepted" else ""
        missing = len(truth) - common_start(written, truth)
        seconds = missing / CHARACTERS_PER_SECOND
        self.settling.edit(hole, wrong.start, self.clock, self.clock + seconds)
        draft.drop(hole, piece)
        yield from self._pass(seconds)

    def _write(self, hole: int, upto: int, seconds: float | None = None, pasted: bool = False) -> Steps:
        """Write the finished text up to an offset."""
        front = self._draft.front(hole)
        if upto <= front:
            return
        seconds = (upto - front) / CHARACTERS_PER_SECOND if seconds is None else seconds
        self.settling.edit(hole, front, self.clock, self.clock + seconds, pasted)
        self._advance(hole, upto)
        yield from self._pass(seconds)

    def _advance(self, hole: int, upto: int) -> None:
        """Let the finished text stand up to an offset."""
        before = self._draft.front(hole)
        self._draft.write(hole, upto)
        self.keys += keystrokes(self._draft.final(hole, before, self._draft.front(hole)))

    def _pass(self, seconds: float) -> Steps:
        self.clock += seconds
        yield seconds
