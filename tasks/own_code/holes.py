"""Holes of a file: the functions and blocks that a developer has yet to write, in any language.

A hole covers whole lines: a function or method with its decorators, or a run of lines between blank lines outside functions. In a
file that Python cannot parse, each run of lines between blank lines is a hole.
"""

import ast
import warnings
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Hole:
    """A part of a finished file; offsets are characters."""

    start: int  # offset of its first line in the file
    stop: int  # offset of the end of its last line, without the newline
    next: int
    """Offset of the next line with text, or the end of the file. Before the developer begins, the text in [start, next) is
    missing."""
    function: bool  # a function or method; else a block
    lines: tuple[tuple[int, int], ...]
    """Start (before the indentation) and end (without trailing white space) of each line with text, relative to `start`."""

    @property
    def size(self) -> int:
        """Number of characters of the text."""
        return self.stop - self.start


@lru_cache(maxsize=4096)
def holes_of(text: str) -> tuple[Hole, ...]:
    """Return the holes that a file can have, in order; they do not overlap and cover every line with text."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    functions = _functions(text)
    runs: list[tuple[int, int, bool]] = []
    row = 0
    while row < len(lines):
        if row in functions:
            runs.append((row, functions[row], True))
            row = functions[row]
        elif lines[row].strip():
            first = row
            while row < len(lines) and lines[row].strip() and row not in functions:
                row += 1
            runs.append((first, row, False))
        else:
            row += 1
    nexts = [*(starts[later[0]] for _, later in pairwise(runs)), len(text)]
    found = []
    for (first, last, function), following in zip(runs, nexts, strict=False):
        start, written = starts[first], [row for row in range(first, last) if lines[row].strip()]
        spans = tuple((starts[row] - start, starts[row] - start + len(lines[row].rstrip())) for row in written)
        found.append(Hole(start, start + spans[-1][1], following, function, spans))
    return tuple(found)


def _functions(text: str) -> dict[int, int]:
    """Return the first row of each outermost function, with its decorators, and the row after its last; rows count from 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # syntax warnings of the read code
            module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    rows: dict[int, int] = {}
    stack: list[ast.AST] = [module]
    while stack:
        node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                rows[first - 1] = child.end_lineno or child.lineno
            elif isinstance(child, ast.stmt):
                stack.append(child)
    return rows
