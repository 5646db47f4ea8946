"""The demo on the console while it runs: a view that changes on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from evals.progress import BAR_WIDTH, Progress, duration

MOST_RATE = 0.4
"""Acceptance at which an arm's bar is full."""


@dataclass(frozen=True)
class Arm:
    """One version with the counts of its completions so far."""

    name: str
    """ "champion", "challenger"."""
    version: str
    accepted: int
    answered: int

    @property
    def rate(self) -> float:
        """Accepted per answered completion; 0 before the first."""
        return self.accepted / self.answered if self.answered else 0.0

    def __str__(self) -> str:
        rate = f" ({self.rate:.1%})" if self.answered else ""
        return f"{self.name} v{self.version} {self.accepted:,} of {self.answered:,} accepted{rate}"


class View(Progress):
    """The progress of the demo, with the arms of the current test and the last verdict."""

    _arms: tuple[Arm, ...] = ()
    _verdict = ""

    def arms(self, arms: Sequence[Arm]) -> None:
        """Show the acceptance of each version that serves users."""
        self._arms = tuple(arms)

    def verdict(self, text: str) -> None:
        """Show the last verdict."""
        self._verdict = text
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line that stays, with the seconds since the view began."""
        stays = f"[{self.seconds:5.0f} s] {text}"
        self.console.print(stays, markup=False, highlight=False, soft_wrap=not self.console.is_terminal)

    def line(self) -> str:
        """Return the current part and the arms in a line."""
        return "; ".join([super().line(), *map(str, self._arms)])

    def __rich__(self) -> RenderableType:
        """Return the heading, a table of the current part and the arms, and the last verdict."""
        table = self.table()
        for arm in self._arms:
            bar = ProgressBar(total=MOST_RATE, completed=min(arm.rate, MOST_RATE), width=BAR_WIDTH)
            amount = f"{arm.rate:6.1%}  {arm.accepted:,} of {arm.answered:,} accepted"
            table.add_row(Text(f"{arm.name} v{arm.version}"), bar, Text(amount))
        verdict = [Text(f"last verdict: {self._verdict}", no_wrap=True, overflow="ellipsis")] if self._verdict else []
        return Group(Text(f"make demo, {duration(self.seconds)}", style="bold"), table, *verdict)
