"""The release of the code that runs, and the one that a settings file is written for (`release = "0.2.0"` at its top)."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEY = "release"


def installed() -> str:
    """Return the release of this code: of its checkout, else of the installed package."""
    project = ROOT / "pyproject.toml"
    number: str = tomllib.loads(project.read_text())["project"]["version"] if project.exists() else version("tabloop")
    return number


def problem(wanted: object, here: str) -> str:
    """Return why a file that is written for a release cannot be read by another; empty if it can be."""
    if not isinstance(wanted, str) or not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        return f'{KEY} = {wanted!r}: expected the release that the file is written for, such as "{here}"'
    if _numbers(wanted) <= _numbers(here):
        return ""
    return (
        f"{KEY} = {wanted!r}: the file is of a newer release than this code, {here} in {ROOT}; run the image or the checkout of "
        f"{wanted}, or give it the file of {here}"
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:3]))
