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
from typing import Any

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
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


class Part:
    """One part of a command."""

    def __init__(self, task: Task, work: float, update: Callable[..., None]) -> None:
        self.task, self.work, self._update = task, work, update

    @property
    def done(self) -> float:
        """Amount that is done."""
        return self.task.completed

    @property
    def share(self) -> float:
        """Share that is done, 0 to 1; 0 where the total is unknown."""
        return min(self.done / self.task.total, 1.0) if self.task.total else 0.0

    def advance(self, by: float = 1.0) -> None:
        """Count more as done."""
        self.at(self.done + by)

    def at(self, done: float) -> None:
        """Set the amount that is done."""
        self._update(self.task.id, completed=done)

    def expect(self, total: float) -> None:
        """Set the total."""
        self._update(self.task.id, total=total)

    def rename(self, name: str) -> None:
        """Set the name."""
        self._update(self.task.id, description=name)


class Progress(rich_progress.Progress):
    """The progress of a command on a console."""

    def __init__(
        self, console: Console, *, work: float = 0.0, clock: Callable[[], float] = time.monotonic, every: float = PLAIN_SECONDS
    ) -> None:
        """Begin to count.

        Args:
            work: of all parts, in the unit of their own `work`; 0: unknown, so that only the time left of a part is shown.
            clock: seconds.
            every: seconds between two plain lines.
        """
        self._work, self._clock, self._every, self._began, self._printed, self._finished = (
            work,
            clock,
            every,
            clock(),
            clock(),
            0.0,
        )
        self._part: Part | None = None
        name = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        amount = _Amount(lambda: self._amount().lstrip(":;, "))
        columns, live = (name, BarColumn(BAR_WIDTH), amount), console.is_terminal
        super().__init__(
            *columns, console=console, transient=True, refresh_per_second=4, get_time=clock, expand=True, disable=not live
        )

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

        Args:
            total: amount to do, in any unit; 0: unknown.
            work: its part of the command's work; parts within it are parts of that.
        """
        before, finished = self._part, self._finished
        if before:
            self.update(before.task.id, visible=False)
        number = self.add_task(name, total=total or None)
        self._part = part = Part(self.tasks[-1], work, self._change)
        if before is None:
            self._print_line()
        try:
            yield part
        finally:
            self.remove_task(number)
            if before:
                self.update(before.task.id, visible=True)
            self._part, self._finished = before, max(self._finished, finished + work)

    def line(self) -> str:
        """Return the current part in a line: its name, amount and time left."""
        return f"{self._part.task.description}{self._amount()}" if self._part else ""

    def _change(self, number: TaskID, **changes: Any) -> None:
        self.update(number, **changes)
        if self._clock() - self._printed >= self._every:
            self._print_line()

    def _print_line(self) -> None:
        if self.disable:
            self._printed = self._clock()
            Progress.say(self, f"[{self.seconds:5.0f} s] {self.line()}")

    def _amount(self) -> str:
        """Return the amount that is done of the current part, and the time left: of the command where its work is known."""
        part = self._part
        if part is None:
            return ""
        total, share, text = part.task.total, part.share, ""
        if total:
            text = f": {share:.0%}" if total <= 1 else f": {part.done:,.0f} of {total:,.0f}"
        if self._work:
            done = (self._finished + part.work * share) / self._work
            return text + (f"; all: {done:.0%}, {duration(self.seconds * (1 / done - 1))} left" if done else "; all: 0%")
        return text + (f", {duration((part.task.elapsed or 0.0) * (1 / share - 1))} left" if share else "")


class _Amount(ProgressColumn):
    """The amount that is done, as a column."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text())
