"""The language of code as clients name it; measures and held-out sets group completions by it."""

import re
from pathlib import PurePosixPath

VALID_NAME = re.compile(r"[a-z0-9_+#-]{1,16}")
"""A file extension or a language name; no other part of a path may be stored."""

DOT_FILES = frozenset(
    ("env", "envrc", "netrc", "npmrc", "pypirc", "pgpass", "gitconfig", "htpasswd", "bashrc", "zshrc", "profile", "bash_profile")
)
"""Dotfiles whose name is their language."""
NO_FILE = PurePosixPath()
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^?#]*")
"""A URI up to its query and fragment. A cell of a notebook has the notebook's path with a fragment."""
BARE_FILES = frozenset(("dockerfile", "makefile", "credentials"))
"""Files whose whole name is their language."""


def language(path: str = "", name: str = "") -> str:
    """Return the file's extension ("py"), else the client's name of the language ("python"), else "".

    For a file such as .env, .env.local or Dockerfile, return the name's first word.
    """
    path = path.replace("\\", "/")
    address = ADDRESS.match(path)
    file = (
        PurePosixPath((address[0] if address else path).rstrip("#~")) if path else NO_FILE
    )  # Emacs saves a.py as #a.py# and a.py~
    dot, _, rest = file.name.lower().partition(".")
    word = rest.partition(".")[0]
    own, whole = word if not dot and word in DOT_FILES else "", dot if dot in BARE_FILES and not rest else ""
    names = (own, file.suffix.removeprefix("."), name, whole)
    return next((word for word in map(str.lower, names) if VALID_NAME.fullmatch(word)), "")
