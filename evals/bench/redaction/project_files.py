"""Files as they stand in projects, with made-up secrets: a count that does not come from redaction's own patterns.

project_files.txt holds them: a line `### PATH`, then the file. What stands between « and » is drawn: `a32` 32 characters of an
alphabet (made_up_secrets.py), `pw` a password and `words` a passphrase of a person, `=TEXT` the text itself.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evals.bench.redaction.made_up_secrets import draw
from infra.model.language import language
from infra.redaction.redactor import Redactor

FILE = Path(__file__).with_suffix(".txt")
MARKED = re.compile("«([^»]+)»")
PASSWORDS = (
    *("hunter2long", "Summer2024!", "correct-horse-battery", "Tr0ub4dor&3x", "l0velace9", "sunshine-moon", "P@ssw0rd-prod"),
    *("dragonfly", "Winter_is_coming7", "qwerty12345", "topsecret99", "kX9$mQ2vL7", "Admin#2023x", "blue.Monday.77"),
)
PHRASES = ("the moon is not for sale", "correct horse battery staple", "winter is the best time", "nine cats for one mouse")
PIECE = 7
"""Neighbouring characters of a secret that must not stay: fewer mean nothing and occur in other text by chance."""


@dataclass(frozen=True)
class ProjectFile:
    """A file with its secrets."""

    path: str
    text: str
    secrets: tuple[str, ...]


def project_files(rng: random.Random) -> Iterator[ProjectFile]:
    """Yield every file with newly drawn secrets."""
    for part in FILE.read_text().split("### ")[1:]:
        path, _, text = part.partition("\n")
        secrets: list[str] = []

        def drawn(match: re.Match[str], secrets: list[str] = secrets) -> str:
            secrets.append(_value(match[1], rng))
            return secrets[-1]

        yield ProjectFile(path, MARKED.sub(drawn, text), tuple(secrets))


def missed(redactor: Redactor, rng: random.Random, *, named: bool) -> tuple[int, dict[str, list[str]]]:
    """Return the number of secrets, and by file those of which a part stays; `named`: the client names the kind of file."""
    tried, found_not = 0, dict[str, list[str]]()
    for file in project_files(rng):
        redacted = redactor.text(file.text, language(file.path) if named else "")
        tried += len(file.secrets)
        if staying := [secret for secret in file.secrets if _stays(secret, redacted)]:
            found_not[file.path] = staying
    return tried, found_not


def _value(name: str, rng: random.Random) -> str:
    if name.startswith("="):
        return name[1:]
    if name == "pw":
        return rng.choice(PASSWORDS)
    return rng.choice(PHRASES) if name == "words" else draw(f"{{{name}}}", rng)


def _stays(secret: str, text: str) -> bool:
    size = min(len(secret), PIECE)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
