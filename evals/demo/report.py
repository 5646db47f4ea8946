"""The finished report: report.json, report.html (page.py), and the last screen with the result, a table and the links."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from evals.demo import words
from evals.demo.page import page
from evals.demo.record import Baselines, Report

GROUNDS = {"later": "later code", "new": "new files", "seen": "seen files"}


def files(directory: Path) -> dict[str, Path]:
    """Return the files of a report by name."""
    return {"report": directory / "report.html", "figures": directory / "report.json"}


def write(report: Report, directory: Path) -> None:
    """Write report.json and report.html."""
    directory.mkdir(parents=True, exist_ok=True)
    found = files(directory)
    found["figures"].write_text(report.model_dump_json(indent=2))
    found["report"].write_text(page(report))


class LastScreen:
    """A finished demo, for a terminal of 80 columns."""

    def __init__(self, report: Report, files: Mapping[str, Path]) -> None:
        """Take the report, and the paths of its files by name."""
        self._report, self._files = report, files

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(words.sentence(self._report), style="bold green" if self._report.improved else "bold red")
        yield table(self._report)
        for name, address in {**self._files, **self._report.addresses}.items():
            yield Text(f"{name + ':':<9} {address}", overflow="fold")
        yield Text("`tabloop status` prints links that log in; `tabloop demo` goes on from here; `tabloop down` stops the stack")


def table(report: Report) -> Table:
    """Return base and champion side by side on each ground."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", f"base v{report.base_version}", f"champion v{report.champion_version}", "difference, 95 %"):
        found.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for ground, values in report.grounds.items():
        found.add_row(f"accepted, {GROUNDS[ground]}, %", *_cells(values, 100))
    for ground, values in report.grounds.items():
        found.add_row(f"kept characters, {GROUNDS[ground]}", *_cells(values.kept_characters, 1))
    return found


def _cells(values: Baselines, scale: float) -> tuple[str, str, str]:
    base, champion = (f"{rate.rate * scale:.2f}" for rate in (values.base_best, values.champion))
    return base, champion, words.interval(values.difference, scale)
