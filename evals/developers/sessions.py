"""The sessions of a pass over the code, and the draft of a file that they write.

In a pass every live hole is written once, each file's from the top, session by session. The sessions of all files are mixed
evenly, those of one file in order. The next pass begins with the holes empty again: the same segments, other developers and other
chance events. By then windows have shown the text.

A hole's text is the finished file's text up to the front, but for patches: other text that stands for a while (a wrong tail that
was accepted, a wrong word, a piece that is being written again). Offsets in a hole are those of its finished text.
"""

import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from evals.developers.draws import Quirks, random_stream
from evals.developers.grounds import holes_in
from evals.developers.pause import Developer
from tasks.evaluation.positions import CONTEXT_CHARACTERS, NoCode, Source
from tasks.own_code.holes import Hole


@dataclass(frozen=True)
class Patch:
    """Text in place of the finished text from `start` to `end`."""

    start: int
    end: int
    text: str
    open: bool = False  # the piece is being written again: `text` is not all that the developer will write


class Draft:
    """The text of a file with holes."""

    def __init__(self, source: Source, holes: Sequence[Hole]) -> None:
        self._text = source.text
        self.holes = tuple(holes)
        """The holes of which nothing stands at first, in order; the rest of the file stands."""
        self._fronts: list[int | None] = [None] * len(self.holes)
        self._patches: list[tuple[Patch, ...]] = [()] * len(self.holes)

    def final(self, hole: int, start: int = 0, stop: int | None = None) -> str:
        """Return the finished text of a hole between two offsets."""
        span = self.holes[hole]
        return self._text[span.start + start : span.start + (span.size if stop is None else min(stop, span.size))]

    def front(self, hole: int) -> int:
        """Return the offset up to which a hole is written; 0 before it is opened."""
        return self._fronts[hole] or 0

    def patches(self, hole: int) -> tuple[Patch, ...]:
        """Return the patches of a hole, in order."""
        return self._patches[hole]

    def open(self, hole: int) -> None:
        """Begin a hole: its lines and the blank lines below it stand from now on."""
        if self._fronts[hole] is None:
            self._fronts[hole] = 0

    def write(self, hole: int, upto: int) -> None:
        """Write the finished text up to an offset; a hole never becomes shorter by it."""
        self._fronts[hole] = max(self.front(hole), min(upto, self.holes[hole].size))

    def put(self, hole: int, patch: Patch) -> None:
        """Let other text stand in a written piece, and remove the patches in it."""
        assert patch.start <= patch.end <= self.front(hole)
        others = [p for p in self._patches[hole] if p.end <= patch.start or p.start >= patch.end]
        self._patches[hole] = tuple(sorted([*others, patch], key=lambda p: (p.start, p.end)))

    def drop(self, hole: int, patch: Patch) -> None:
        """Let the finished text stand where the patch was."""
        self._patches[hole] = tuple(p for p in self._patches[hole] if p != patch)

    def rename(self, hole: int, offset: int, old: str, new: str) -> None:
        """Let the rest of a hole, which is not written yet, use another name in the place of one."""
        span = self.holes[hole]
        begin, found = span.start + offset, re.compile(rf"\b{re.escape(old)}\b")
        ends = [match.end() - span.start for match in found.finditer(self._text, begin, span.stop)]
        longer = len(new) - len(old)

        def moved(at: int) -> int:
            return at + longer * bisect_right(ends, at)

        rest = found.sub(lambda match: new, self._text[begin : span.stop])
        self._text = self._text[:begin] + rest + self._text[span.stop :]
        grown, lines = longer * len(ends), tuple((moved(start), moved(end)) for start, end in span.lines)
        renamed = replace(span, stop=span.stop + grown, next=span.next + grown, lines=lines)
        later = (
            replace(one, start=one.start + grown, stop=one.stop + grown, next=one.next + grown) for one in self.holes[hole + 1 :]
        )
        self.holes = (*self.holes[:hole], renamed, *later)

    def between(self, hole: int, start: int, stop: int) -> str:
        """Return what stands between two offsets of a hole, with the patches that lie between them."""
        parts, at = [], start
        stop = min(stop, self.front(hole))
        for patch in self._patches[hole]:
            if start <= patch.start and patch.end <= stop:
                parts += [self.final(hole, at, patch.start), patch.text]
                at = patch.end
        return "".join([*parts, self.final(hole, at, stop)] if at < stop else parts)

    def is_complete(self, hole: int, start: int, stop: int) -> bool:
        """Return whether the text between two offsets stands, but for wrong text that the developer holds to be right."""
        return self.front(hole) >= stop and not any(p.open for p in self._patches[hole] if start <= p.start and p.end <= stop)

    def before(self, hole: int, offset: int) -> str:
        """Return what stands before an offset of a hole, the nearest CONTEXT_CHARACTERS."""
        return (self._standing_up_to(hole) + self.between(hole, 0, offset))[-CONTEXT_CHARACTERS:]

    def after(self, hole: int, offset: int) -> str:
        """Return what stands after an offset of a hole, the nearest CONTEXT_CHARACTERS."""
        parts = [self.between(hole, offset, self.holes[hole].size) if offset < self.front(hole) else "", self._below(hole)]
        later = (self._standing(at) + self._content(at) for at in range(hole + 1, len(self.holes)))
        return "".join([*parts, *later, self._standing(len(self.holes))])[:CONTEXT_CHARACTERS]

    @property
    def text(self) -> str:
        """The whole file as it stands."""
        return self._standing_up_to(len(self.holes))

    def _standing_up_to(self, hole: int) -> str:
        return "".join([*(self._standing(at) + self._content(at) for at in range(hole)), self._standing(hole)])

    def _content(self, hole: int) -> str:
        return self.between(hole, 0, self.holes[hole].size) + self._below(hole)

    def _below(self, hole: int) -> str:
        """Return the newline and the blank lines below an opened hole."""
        span = self.holes[hole]
        return "" if self._fronts[hole] is None else self._text[span.stop : span.next]

    def _standing(self, at: int) -> str:
        """Return the text that always stood between hole `at` - 1 and hole `at`."""
        start = self.holes[at - 1].next if at else 0
        return self._text[start : self.holes[at].start if at < len(self.holes) else None]


@dataclass(frozen=True)
class Segment:
    """Some lines of a hole, written without leaving it."""

    hole: int  # number of the hole in the draft
    first: int  # number of the first line in the hole
    last: int  # number after the last line


@dataclass(frozen=True)
class Session:
    """One developer in one file, from opening it to leaving it."""

    number: int  # over all passes, from 0
    round: int  # the pass
    source: Source
    holes: tuple[Hole, ...]  # the holes of the draft: live ones, and those kept for later, which no segment names
    developer: Developer
    segments: tuple[Segment, ...]
    earlier: tuple[Segment, ...]  # segments of the file's earlier sessions in this pass

    def draft(self) -> Draft:
        """Return the file as it stands when the session begins, if everything before went by plan."""
        draft = Draft(self.source, self.holes)
        for segment in self.earlier:
            draft.open(segment.hole)
            draft.write(segment.hole, self.holes[segment.hole].lines[segment.last - 1][1])
        return draft


class Team:
    """Developers, some of whom are more active than others."""

    def __init__(self, developers: Sequence[Developer]) -> None:
        self._developers = tuple(developers)
        self._activity = list(accumulate(developer.taste.activity for developer in developers))

    def draw(self, rng: random.Random) -> Developer:
        """Return a developer, by activity."""
        return rng.choices(self._developers, cum_weights=self._activity)[0]


def sessions_of_pass(sources: Sequence[Source], team: Team, quirks: Quirks, seed: int, number: int) -> tuple[Session, ...]:
    """Return the sessions of a pass, in order, numbered from 0. Raises NoCode where no file has a live hole."""
    mixed: list[tuple[float, str, Session]] = []
    for source in sources:
        rng = random_stream("sessions", seed, number, source.name)
        sessions = _sessions_of_file(source, quirks, team, seed, rng)
        offset = rng.random()
        mixed += (((index + offset) / len(sessions), source.name, s) for index, s in enumerate(sessions))
    if not mixed:
        raise NoCode(f"code: none of {len(sources)} files is one that developers type in; give more code with --code")
    ordered = sorted(mixed, key=lambda item: item[:2])
    return tuple(replace(session, number=index, round=number) for index, (*_, session) in enumerate(ordered))


def _sessions_of_file(source: Source, quirks: Quirks, team: Team, seed: int, rng: random.Random) -> list[Session]:
    live, later = holes_in(source, "live"), holes_in(source, "later")
    holes = tuple(sorted((*live, *later), key=lambda hole: hole.start))
    todo = [Segment(index, 0, len(hole.lines)) for index, hole in enumerate(holes) if hole not in later]
    cuts = random_stream("segments", seed, source.name)
    sessions: list[Session] = []
    developer, earlier = team.draw(rng), list[Segment]()
    while todo:
        developer = developer if rng.random() < quirks.stays else team.draw(rng)
        segments = _segments(todo, quirks, cuts)
        sessions.append(Session(0, 0, source, holes, developer, tuple(segments), tuple(earlier)))
        earlier += segments
    return sessions


def _segments(todo: list[Segment], quirks: Quirks, rng: random.Random) -> list[Segment]:
    """Take the segments of the next session off the list; puts back what the developer comes back to."""
    segments = _take(todo, max(3, round(rng.uniform(0.3, 1.7) * quirks.session_lines)))
    first, last = segments[0], segments[-1]
    if len(segments) > 1 and first.last - first.first > 1 and rng.random() < quirks.jumps:
        # The developer leaves the first hole at a line, and comes back after the second.
        line = first.first + rng.randint(1, first.last - first.first - 1)
        leaves, returns = Segment(first.hole, first.first, line), Segment(first.hole, line, first.last)
        segments = [leaves, segments[1], returns, *segments[2:]]
    elif last.last - last.first > 1 and rng.random() < quirks.unfinished:
        line = last.first + rng.randint(1, last.last - last.first - 1)
        segments[-1] = Segment(last.hole, last.first, line)
        if todo and todo[0].hole == last.hole:
            todo[0] = Segment(last.hole, line, todo[0].last)
        elif rng.random() < quirks.comes_back:
            todo.insert(0, Segment(last.hole, line, last.last))
    return segments


def _take(todo: list[Segment], lines: int) -> list[Segment]:
    """Take about so many lines off the list; a hole that is longer goes on in the next session."""
    taken: list[Segment] = []
    while todo and lines > 0:
        segment = todo.pop(0)
        if segment.last - segment.first > 2 * lines:
            cut = segment.first + lines
            todo.insert(0, Segment(segment.hole, cut, segment.last))
            segment = Segment(segment.hole, segment.first, cut)
        taken.append(segment)
        lines -= segment.last - segment.first
    return taken
