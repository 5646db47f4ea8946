"""The installed Python sources that the base model is trained on.

Files that repeat lines of the held-out packages, such as a vendored copy or a fork, are left out.
"""

import hashlib
import sysconfig
from pathlib import Path

from tasks.evaluation.heldout.packages import HELD_OUT_PACKAGES, held_out_files, read_source, site_packages, source_files

LONG_LINE = 30
MAX_SHARED = 0.1
"""Largest share of a training file's long lines that may also occur in held-out files."""


def standard_library() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def training_files() -> list[Path]:
    """Return the sources of the standard library and the other packages, without duplicates and copies of held-out code."""
    digests: set[bytes] = set()
    held_lines = {line for file in held_out_files() for line in _long_lines(read_source(file) or "")}
    held_out = {site_packages() / package for package in HELD_OUT_PACKAGES}
    files = []
    for root in (standard_library(), site_packages()):
        for file in sorted(source_files(root)):
            if any(parent in held_out for parent in file.parents):
                continue
            text = read_source(file)
            if text is None or (digest := hashlib.sha256(text.encode()).digest()) in digests:
                continue
            digests.add(digest)
            lines = _long_lines(text)
            if sum(line in held_lines for line in lines) <= MAX_SHARED * len(lines):
                files.append(file)
    return files


def _long_lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if len(line := raw.strip()) >= LONG_LINE]
