"""The command `tabloop` of this checkout, for a PATH: the virtual environment may hold that of another one."""

import sys
from pathlib import Path

from infra.settings import ROOT


def shim(folder: Path) -> Path:
    """Write the command into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "tabloop"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m infra.cli "$@"\n')
    script.chmod(0o755)
    return folder
