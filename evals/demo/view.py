"""The demo on the console while it runs: a view that changes on a terminal, plain lines elsewhere."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from evals.progress import Progress, duration
from infra.pages.figures import ArmRow


class View(Progress):
    """The progress of the demo, with the arms of the current test as the gate last saw them, and the last verdict."""

    _arms: Sequence[ArmRow] = ()
    _verdict = ""

    def arms(self, arms: Sequence[ArmRow]) -> None:
        """Show the arms of a test."""
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
        return "; ".join([super().line(), *(row.brief() for row in self._arms)])

    def __rich__(self) -> RenderableType:
        """Return the heading, a table of the current part, the arms, and the last verdict."""
        arms = [Text(row.brief(), no_wrap=True, overflow="ellipsis") for row in self._arms]
        verdict = [Text(f"last verdict: {self._verdict}", no_wrap=True, overflow="ellipsis")] if self._verdict else []
        return Group(Text(f"tabloop demo, {duration(self.seconds)}", style="bold"), self.table(), *arms, *verdict)
