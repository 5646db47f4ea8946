"""The progress of a long command and the time left: one line that moves on a terminal, a plain line now and then elsewhere.

with Progress(console, work=3.0) as progress:
    with progress.part("training", 400, work=2.0) as part:
        ...
        part.advance()
    progress.say("loss 1.92")
    with progress.part("scoring", 1000, work=1.0) as part:
        ...
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

PLAIN_SECONDS = 20.0
"""Seconds between two plain lines."""
BAR_WIDTH = 16


def duration(seconds: float) -> str:
    """Return seconds as people say them: "40 s", "12 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@dataclass
class Part:
    """One part of a command."""

    name: str
    total: float  # amount to do, in any unit; 0: unknown
    work: float  # its part of the command's work
    began: float
    changed: Callable[[], None]
    done: float = 0.0

    @property
    def share(self) -> float:
        """Share that is done, 0 to 1; 0 where the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def advance(self, by: float = 1.0) -> None:
        """Count more as done."""
        self.at(self.done + by)

    def at(self, done: float) -> None:
        """Set the amount that is done."""
        self.done = done
        self.changed()

    def expect(self, total: float) -> None:
        self.total = total
        self.changed()

    def rename(self, name: str) -> None:
        self.name = name
        self.changed()


class Progress:
    """The progress of a command on a console.

    `work`: of all parts, in the unit of their own `work`; 0: unknown, so that only the time left of a part is shown. `clock`:
    seconds. `every`: seconds between two plain lines.
    """

    def __init__(
        self, console: Console, *, work: float = 0.0, clock: Callable[[], float] = time.monotonic, every: float = PLAIN_SECONDS
    ) -> None:
        self.console = console
        self._work, self._clock, self._every, self._finished = work, clock, every, 0.0
        self._began = self._printed = clock()
        self._part: Part | None = None
        self._live = Live(self, console=console, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __rich__(self) -> RenderableType:
        return self.table()

    @property
    def seconds(self) -> float:
        """Seconds since the progress began."""
        return self._clock() - self._began

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def part(self, name: str, total: float = 0.0, *, work: float = 0.0) -> Iterator[Part]:
        """Show one part until the block ends, in place of the part around it.

        `total`: amount to do, in any unit; 0: unknown. `work`: its part of the command's work; parts within it are parts of
        that.
        """
        before, finished = self._part, self._finished
        self._part = part = Part(name, total, work, self._clock(), self._changed)
        if before is None:
            self._print_line()
        try:
            yield part
        finally:
            self._part, self._finished = before, max(self._finished, finished + work)

    def line(self) -> str:
        """Return the current part in a line: its name, amount and time left."""
        return f"{self._part.name}{self._amount(self._part)}" if self._part else ""

    def table(self) -> Table:
        """Return a table with the current part: its name, a bar, and its amount and time left."""
        name, amount = Column(ratio=1, no_wrap=True, overflow="ellipsis"), Column(no_wrap=True, overflow="ellipsis")
        table = Table.grid(name, Column(), amount, padding=(0, 1), expand=True)
        if part := self._part:
            bar = ProgressBar(part.total or None, part.done, BAR_WIDTH, animation_time=self._clock())
            table.add_row(Text(part.name), bar, Text(self._amount(part).lstrip(":;, ")))
        return table

    def _changed(self) -> None:
        if self._clock() - self._printed >= self._every:
            self._print_line()

    def _print_line(self) -> None:
        if not self.console.is_terminal:
            self._printed = self._clock()
            Progress.say(self, f"[{self.seconds:5.0f} s] {self.line()}")

    def _amount(self, part: Part) -> str:
        """Return the amount that is done of a part, and the time left: of the command where its work is known."""
        share, text = part.share, ""
        if part.total:
            text = f": {share:.0%}" if part.total <= 1 else f": {part.done:,.0f} of {part.total:,.0f}"
        if self._work:
            done = (self._finished + part.work * share) / self._work
            return text + (f"; all: {done:.0%}, {duration(self.seconds * (1 / done - 1))} left" if done else "; all: 0%")
        return text + (f", {duration((self._clock() - part.began) * (1 / share - 1))} left" if share else "")
