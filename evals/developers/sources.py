"""The code of the simulated developers: some of it is written live, the rest makes up the grounds
(evals/developers/grounds.py)."""

from collections.abc import Sequence
from pathlib import Path

from tasks.evaluation import positions
from tasks.evaluation.heldout import held_out_files, site_packages


def code_from(directories: Sequence[Path] = ()) -> positions.Code:
    """Return the Python files below the directories; without directories, the held-out files that no model is scored on.

    Raises:
        ValueError: a path is not a directory, or the directories hold no Python file.
    """
    if not directories:
        return positions.Code(positions.developer_sources(positions.read_sources(held_out_files(), [site_packages()])))
    for directory in directories:
        if not directory.is_dir():
            raise ValueError(f"--code {directory}: no such directory; give one that holds Python files")
    files = sorted({file for directory in directories for file in directory.rglob("*.py")})
    return positions.Code(positions.read_sources(files, directories))
