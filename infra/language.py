"""The language of code as clients name it; reward.baseline_by_language groups completions by it."""

import re
from pathlib import PurePosixPath

VALID_NAME = re.compile(r"[a-z0-9_+#-]{1,16}")
"""A file extension or a language name; no other part of a path may be stored."""


def language(path: str = "", name: str = "") -> str:
    """Return the file's extension ("py"), else the client's name of the language ("python"), else the empty text."""
    names = (PurePosixPath(path).suffix.removeprefix("."), name)
    return next((word for word in map(str.lower, names) if VALID_NAME.fullmatch(word)), "")
