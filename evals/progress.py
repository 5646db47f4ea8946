"""How far a long command is and how long it still takes: one line that moves on a terminal, a plain line now and then elsewhere.

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
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

PLAIN_SECONDS = 20.0
"""Seconds between two plain lines."""
BAR_WIDTH = 16


def duration(seconds: float) -> str:
    """Return seconds as people say them: "40 s", "12 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


class Part:
    """One part of a command: how much of it is done."""

    def __init__(self, name: str, total: float, work: float, began: float, moved: Callable[[], None]) -> None:
        self.name, self.total, self.work, self.began, self.done = name, total, work, began, 0.0
        self._moved = moved

    @property
    def share(self) -> float:
        """The share that is done, 0 to 1; 0 where the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def advance(self, by: float = 1.0) -> None:
        """Count more as done."""
        self.at(self.done + by)

    def at(self, done: float) -> None:
        """Set how much is done."""
        self.done = done
        self._moved()

    def rename(self, name: str) -> None:
        """Set what is being done."""
        self.name = name
        self._moved()


class Progress:
    """The progress of a command on a console."""

    def __init__(
        self, console: Console, *, work: float = 0.0, clock: Callable[[], float] = time.monotonic, every: float = PLAIN_SECONDS
    ) -> None:
        """Begin to count.

        Args:
            work: of all parts, in the unit of their own `work`; 0: unknown, so that only the time left of a part is told.
            clock: seconds.
            every: seconds between two plain lines.
        """
        self.console, self._work, self._clock, self._every = console, work, clock, every
        self._began, self._told, self._finished = clock(), clock(), 0.0
        self._part: Part | None = None
        self._live = Live(self, console=console, transient=True, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def part(self, name: str, total: float = 0.0, *, work: float = 0.0) -> Iterator[Part]:
        """Show one part until the block ends.

        Args:
            total: how much there is to do, in any unit; 0: unknown.
            work: its part of the command's work; parts within it are parts of that.
        """
        before, finished = self._part, self._finished
        self._part = part = Part(name, total, work, self._clock(), self._moved)
        if before is None:
            self._tell_if_due(first=True)
        try:
            yield part
        finally:
            self._part, self._finished = before, max(self._finished, finished + work)

    def _moved(self) -> None:
        self._tell_if_due()

    def _tell_if_due(self, first: bool = False) -> None:
        now = self._clock()
        if self._live or self._part is None or not (first or now - self._told >= self._every):
            return
        self._told = now
        self.say(f"[{now - self._began:5.0f} s] {self._part.name}{self._counted(self._part)}{self._left(self._part)}")

    @staticmethod
    def _counted(part: Part) -> str:
        if not part.total:
            return ""
        return f": {part.share:.0%}" if part.total <= 1 else f": {part.done:,.0f} of {part.total:,.0f}"

    def _left(self, part: Part) -> str:
        """Return the time left of the command where its work is known, else of the part."""
        now = self._clock()
        if self._work:
            done = (self._finished + part.work * part.share) / self._work
            return f"; all: {done:.0%}, {duration((now - self._began) * (1 / done - 1))} left" if done else "; all: 0%"
        return f", {duration((now - part.began) * (1 / part.share - 1))} left" if part.share else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        part = self._part
        if part is None:
            return
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        pulse = not part.total
        bar = ProgressBar(total=part.total or None, completed=part.done, width=BAR_WIDTH, pulse=pulse)
        line.add_row(part.name, bar, f"{self._counted(part).lstrip(': ')}{self._left(part)}".lstrip("; ,"))
        yield line
