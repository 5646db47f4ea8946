"""The files of the demo's report: report.json, and one self-contained HTML page (page.py)."""

from pathlib import Path

from evals.demo.page import page
from evals.demo.record import Report


def files(directory: Path) -> dict[str, Path]:
    """Return the files of a report by what they are."""
    return {"report": directory / "report.html", "figures": directory / "report.json"}


def write(report: Report, directory: Path) -> None:
    """Write report.json and report.html."""
    directory.mkdir(parents=True, exist_ok=True)
    found = files(directory)
    found["figures"].write_text(report.model_dump_json(indent=2))
    found["report"].write_text(page(report))
