"""Who writes what, when: the sessions of a pass over the code.

In a pass every live hole is written once, each file's from the top, session by session. The sessions of all files are mixed
evenly, those of one file in order. The next pass begins with the holes empty again: the same segments, other developers and other
chance events. By then windows have shown the text.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from evals.developers.draft import Draft
from evals.developers.draws import Quirks, random_stream
from evals.developers.grounds import later_holes, live_holes
from evals.developers.pause import Developer
from tasks.evaluation.holes import Hole
from tasks.evaluation.positions import Source


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
    """Return the sessions of a pass, in order, numbered from 0.

    Raises:
        ValueError: no file has a live hole.
    """
    mixed: list[tuple[float, str, Session]] = []
    for source in sources:
        rng = random_stream("sessions", seed, number, source.name)
        sessions = _sessions_of_file(source, quirks, team, seed, rng)
        offset = rng.random()
        mixed += (((index + offset) / len(sessions), source.name, s) for index, s in enumerate(sessions))
    if not mixed:
        raise ValueError(f"code: none of {len(sources)} files is one that developers type in; give more code with --code")
    ordered = sorted(mixed, key=lambda item: item[:2])
    return tuple(replace(session, number=index, round=number) for index, (*_, session) in enumerate(ordered))


def _sessions_of_file(source: Source, quirks: Quirks, team: Team, seed: int, rng: random.Random) -> list[Session]:
    live, later = live_holes(source), later_holes(source)
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
        segments = _jump(segments, first.first + rng.randint(1, first.last - first.first - 1))
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


def _jump(segments: list[Segment], line: int) -> list[Segment]:
    """Leave the first segment at a line and come back after the second."""
    first, second, *rest = segments
    return [Segment(first.hole, first.first, line), second, Segment(first.hole, line, first.last), *rest]
