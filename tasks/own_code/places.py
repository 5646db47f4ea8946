"""Positions of finished files as editors ask: the cursor in a line that somebody writes, and the rest of the line as its truth.

People ask while they write. So at a share of the positions the rest of the function or block is not written yet: the suffix
begins after it. At the others it stands, as where somebody changes a line.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.model.language import language
from infra.redaction.patterns import Span
from infra.redaction.redactor import Redactor
from tasks.evaluation.positions import CONTEXT_CHARACTERS, Position, Source, draw_column, position_at
from tasks.own_code.holes import Hole, holes_of

UNWRITTEN = 0.5
"""Share of the positions below which the rest of the function or block is missing."""
SHARE_OF_FILE = 0.1
"""Largest share of the positions from one file; with few files, twice their equal share."""
SEED = 1


@dataclass(frozen=True)
class Drawn:
    """Positions with the counts of those left out."""

    positions: tuple[Position, ...]
    left_out: Counter[str]


def draw(sources: Sequence[Source], count: int, redactor: Redactor, seed: int = SEED) -> Drawn:
    """Return at most `count` distinct positions in random order, each in a line of its own: the same for the same arguments."""
    rng = random.Random(f"own code/{seed}")
    lines = [
        (number, hole, line) for number, source in enumerate(sources) for hole in holes_of(source.text) for line in hole.lines
    ]
    rng.shuffle(lines)
    most = max(1, round(share_of_file(len(sources)) * min(count, len(lines))))
    secrets = [redactor.spans(source.text, language(source.name)) for source in sources]
    taken, left_out, found = Counter[int](), Counter[str](), list[Position]()
    for number, hole, line in lines:
        if len(found) == count:
            left_out["surplus"] += 1
        elif taken[number] == most:
            left_out["over_share"] += 1
        else:
            position = _position(sources[number], hole, line, rng)
            if near(secrets[number], hole.start + line[0], hole.stop):
                left_out["secret"] += 1
            else:
                taken[number] += 1
                found.append(position)
    return Drawn(tuple(found), left_out)


def share_of_file(files: int) -> float:
    """Return the largest share of the positions from one of so many files."""
    return min(1.0, max(SHARE_OF_FILE, 2 / max(files, 1)))


def near(spans: Sequence[Span], start: int, stop: int) -> bool:
    """Return whether a secret stands in the text from `start` to `stop`, or in the code around it that a model may see."""
    return any(first < stop + CONTEXT_CHARACTERS and last > start - CONTEXT_CHARACTERS for first, last in spans)


def _position(source: Source, hole: Hole, line: tuple[int, int], rng: random.Random) -> Position:
    start, end = hole.start + line[0], hole.start + line[1]
    position = position_at(source, start + draw_column(source.text[start:end], rng), end)
    if rng.random() < UNWRITTEN:
        return replace(position, suffix=source.text[hole.stop : hole.stop + CONTEXT_CHARACTERS])
    return position
