"""What the demo shows while it runs: one view that changes on a terminal, plain lines elsewhere. It reads nothing itself."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evals.progress import Part, duration

PLAIN_SECONDS = 15.0
"""Seconds between two plain lines of a stage."""
BAR_WIDTH = 16
MOST_RATE = 0.4
"""Acceptance at which an arm's bar is full."""


@dataclass(frozen=True)
class Arm:
    """One version and what became of its completions so far."""

    name: str
    """ "champion", "challenger"."""
    version: str
    accepted: int
    answered: int

    def __str__(self) -> str:
        rate = f" ({self.accepted / self.answered:.1%})" if self.answered else ""
        return f"{self.name} v{self.version} {self.accepted:,} of {self.answered:,} accepted{rate}"


class View:
    """The demo's view on a console."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic, every: float = PLAIN_SECONDS) -> None:
        """Begin to count the time.

        Args:
            clock: seconds.
            every: seconds between two plain lines of a stage.
        """
        self._console, self._clock, self._every = console, clock, every
        self._began, self._told = clock(), clock()
        self._stage: Part | None = None
        self._arms: tuple[Arm, ...] = ()
        self._verdict = ""
        self._live = Live(self, console=console, transient=True, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    @contextmanager
    def stage(self, name: str, total: float = 0.0) -> Iterator[Part]:
        """Show a stage until the block ends; `total`: how much there is to do, in any unit, 0 where that is unknown."""
        before = self._stage
        self._stage = stage = Part(name, total, 0.0, self._clock(), self._moved)
        if not self._live and before is None:
            self._tell(stage)
        try:
            yield stage
        finally:
            self._stage = before

    def arms(self, arms: Sequence[Arm]) -> None:
        """Show the acceptance of each version that meets users."""
        self._arms = tuple(arms)

    def verdict(self, text: str) -> None:
        """Show the last verdict."""
        self._verdict = text
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line that stays, with the seconds since the view began."""
        line = f"[{self._seconds:5.0f} s] {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=not self._live)

    @property
    def _seconds(self) -> float:
        return self._clock() - self._began

    def _moved(self) -> None:
        if not self._live and self._stage and self._clock() - self._told >= self._every:
            self._tell(self._stage)

    def _tell(self, stage: Part) -> None:
        self._told = self._clock()
        self.say("; ".join([f"{stage.name}{self._counted(stage)}", *map(str, self._arms)]))

    def _counted(self, stage: Part) -> str:
        """Return how much of a stage is done, and the time left."""
        if not stage.total:
            return ""
        done = f"{stage.share:.0%}" if stage.total <= 1 else f"{stage.done:,.0f} of {stage.total:,.0f}"
        left = f", {duration((self._clock() - stage.began) * (1 / stage.share - 1))} left" if stage.share else ""
        return f": {done}{left}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"make demo, {duration(self._seconds)}", style="bold")
        yield self._stage_line()
        for arm in self._arms:
            yield _arm_line(arm)
        if self._verdict:
            yield Text(f"last verdict: {self._verdict}", no_wrap=True, overflow="ellipsis")

    def _stage_line(self) -> Table:
        line, stage = _grid(), self._stage
        if stage:
            bar = ProgressBar(total=stage.total or None, completed=stage.done, width=BAR_WIDTH, pulse=not stage.total)
            line.add_row(stage.name, bar, self._counted(stage).removeprefix(": "))
        return line


def _arm_line(arm: Arm) -> Table:
    line, rate = _grid(), arm.accepted / arm.answered if arm.answered else 0.0
    bar = ProgressBar(total=MOST_RATE, completed=min(rate, MOST_RATE), width=BAR_WIDTH)
    line.add_row(f"{arm.name} v{arm.version}", bar, f"{rate:6.1%}  {arm.accepted:,} of {arm.answered:,} accepted")
    return line


def _grid() -> Table:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(no_wrap=True, width=BAR_WIDTH)
    line.add_column(no_wrap=True, width=33, overflow="ellipsis")
    return line
