"""The code that developers type through."""

from collections.abc import Sequence
from pathlib import Path

from evals import positions
from evals.heldout import held_out_files, site_packages


def code_from(directories: Sequence[Path] = ()) -> positions.Code:
    """The Python files below the given directories, or the held-out packages' files that no model is scored on.

    Raises:
        ValueError: a directory is none, or there is no Python in them.
    """
    if not directories:
        return positions.Code(positions.for_developers(positions.read(held_out_files(), [site_packages()])))
    for directory in directories:
        if not directory.is_dir():
            raise ValueError(f"--code {directory}: no such directory; give one that holds Python files")
    files = sorted({file for directory in directories for file in directory.rglob("*.py")})
    return positions.Code(positions.read(files, directories))
