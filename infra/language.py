"""Which language code is in, as far as clients tell: what completions are compared among (reward.baseline_by_language)."""

import re
from pathlib import PurePosixPath

TOLD = re.compile(r"[a-z0-9_+#-]{1,16}")
"""An ending or a name; nothing else of a path is kept."""


def language(path: str = "", name: str = "") -> str:
    """The file's ending ("py"), else the name that a client has for the language ("python"); empty where neither is told."""
    told = (PurePosixPath(path).suffix.removeprefix("."), name)
    return next((word for word in map(str.lower, told) if TOLD.fullmatch(word)), "")
