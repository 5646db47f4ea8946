"""Writes infra/chart/dashboards/: `python -m evals.docs.dashboards`."""

import sys
from pathlib import Path

from evals.docs.dashboards.board import Board
from evals.docs.dashboards.loop import EXPERIMENT, LEARNING
from evals.docs.dashboards.machines import ENGINES, FLEET
from evals.docs.dashboards.serving import SERVING
from infra.settings import ROOT

BOARDS: tuple[Board, ...] = (SERVING, ENGINES, LEARNING, EXPERIMENT, FLEET)
FOLDER = ROOT / "infra/chart/dashboards"


def write(folder: Path = FOLDER) -> None:
    """Write each dashboard's JSON."""
    for board in BOARDS:
        (folder / f"{board.name}.json").write_text(board.json())


if __name__ == "__main__":
    write()
    sys.exit(0)
