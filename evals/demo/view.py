"""The demo on the console while it runs: a view that changes on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from evals.developers import Counts
from evals.progress import BAR_WIDTH, Progress, duration

MOST_RATE = 0.4
"""Acceptance at which an arm's bar is full."""


class View(Progress):
    """The progress of the demo, with the arms of the current test and the last verdict."""

    _arms: Mapping[str, Counts] = MappingProxyType({})
    _verdict = ""

    def arms(self, arms: Mapping[str, Counts]) -> None:
        """Show the acceptance of each version that serves users, by its name."""
        self._arms = arms

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
        arms = (
            f"{name} {_accepted(counts)}" + (f" ({counts.acceptance:.1%})" if counts.answered else "")
            for name, counts in self._arms.items()
        )
        return "; ".join([super().line(), *arms])

    def __rich__(self) -> RenderableType:
        """Return the heading, a table of the current part and the arms, and the last verdict."""
        table = self.table()
        for name, counts in self._arms.items():
            rate = counts.acceptance if counts.answered else 0.0
            bar = ProgressBar(total=MOST_RATE, completed=min(rate, MOST_RATE), width=BAR_WIDTH)
            table.add_row(Text(name), bar, Text(f"{rate:6.1%}  {_accepted(counts)}"))
        verdict = [Text(f"last verdict: {self._verdict}", no_wrap=True, overflow="ellipsis")] if self._verdict else []
        return Group(Text(f"make demo, {duration(self.seconds)}", style="bold"), table, *verdict)


def _accepted(counts: Counts) -> str:
    return f"{counts.accepted:,} of {counts.answered:,} accepted"
