"""Places at which nothing should be written: the ends of finished lines.

The file continues with the next line there, so anything a model writes is wrong. Only silence is measured at these places.
"""

import random
from collections.abc import Sequence

from tasks.evaluation.positions import Code, Position, Source, position_at

TRIES = 50
"""Lines drawn for each requested place."""


def positions(sources: Sequence[Source], count: int, key: str) -> tuple[Position, ...]:
    """Return at most `count` distinct ends of lines, each line equally likely; the same for the same sources, count and key."""
    if not count:
        return ()
    code, rng = Code(sources), random.Random(f"silent/{key}")
    found: dict[tuple[str, int], Position] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        source, end = code.draw_line_end(rng)
        # At the end of a file, another line may well follow.
        if source.text[end:].strip():
            found.setdefault((source.name, end), position_at(source, end, end))
    return tuple(found.values())
