"""Texts with and without secrets for the search for secrets: project files, ordinary code, hostile texts.

Secrets are drawn when they are needed, from templates in which `{a36}` stands for 36 characters of the alphabet `a`. So no
scanner of this repository finds a secret, and none is a copy of redaction's own patterns.

project_files.txt holds files as they stand in projects, for a count that does not come from redaction's own patterns: a line
`### PATH`, then the file. What stands between « and » is drawn: `a32` 32 characters of an alphabet, `pw` a password and `words` a
passphrase of a person, `=TEXT` the text itself.
"""

import base64
import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.redaction.texts import Texts

ALPHABETS = {
    **{"d": string.digits, "l": string.ascii_lowercase, "x": "0123456789abcdef", "a": string.ascii_letters + string.digits},
    **{"b": string.ascii_lowercase + string.digits, "U": string.ascii_uppercase + string.digits},
    **{"w": string.ascii_letters + string.digits + "_-", "s": string.ascii_letters + string.digits + "+/"},
}
PEOPLE = {
    "pw": (
        *("hunter2long", "Summer2024!", "correct-horse-battery", "Tr0ub4dor&3x", "l0velace9", "sunshine-moon", "P@ssw0rd-prod"),
        *("dragonfly", "Winter_is_coming7", "qwerty12345", "topsecret99", "kX9$mQ2vL7", "Admin#2023x", "blue.Monday.77"),
    ),
    "words": ("the moon is not for sale", "correct horse battery staple", "winter is the best time", "nine cats for one mouse"),
}
"""Passwords and passphrases that people choose, in project_files.txt."""
PREFIX, SUFFIX = 3_000, 1_000  # most characters before and after the cursor that editors send
ENDINGS = (".py", ".pyi", ".js", ".ts", ".h", ".c", ".cpp", ".sh", ".md", ".toml", ".yaml", ".yml", ".cfg", ".ini")
WITH_SECRETS = re.compile(r"/(tests?|testing|examples?|idlelib)/|/test_|_test\.|conftest|detect_secrets|/ssl/")
"""Files that hold made-up secrets on purpose."""
MEGABYTE = 900_000


def draw(template: str, rng: random.Random) -> str:
    """Return a made-up value of a template."""
    pair = base64.b64encode(f"ada:{_characters('a', 9, rng)}".encode()).decode()
    text = template.replace("{basic}", pair)
    return re.sub(r"\{([a-zA-Z])(\d+)\}", lambda m: _characters(m[1], int(m[2]), rng), text)


def _characters(alphabet: str, count: int, rng: random.Random) -> str:
    """Return characters with at least one digit and one letter where there are both, as in every real key of that length."""
    letters = ALPHABETS[alphabet]
    while True:
        drawn = "".join(rng.choices(letters, k=count))
        mixed = any(c.isdigit() for c in drawn) and any(c.isalpha() for c in drawn)
        if (mixed or count < 8 or letters == string.digits) and drawn[0] not in "-_" and drawn[-1] not in "-_":
            return drawn


def private_key(rng: random.Random, kind: str = "RSA ") -> str:
    """Return a made-up private key of eight lines."""
    body = "\n".join(_characters("s", 64, rng) for _ in range(6))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"


@dataclass(frozen=True)
class ProjectFile:
    """A file with its secrets."""

    path: str
    text: str
    secrets: tuple[str, ...]


def project_files(rng: random.Random) -> Iterator[ProjectFile]:
    """Yield every file with newly drawn secrets."""
    for part in Path(__file__).with_name("project_files.txt").read_text().split("### ")[1:]:
        path, _, text = part.partition("\n")
        pieces = re.split("«([^»]+)»", text)
        pieces[1::2] = [_marked(mark, rng) for mark in pieces[1::2]]
        yield ProjectFile(path, "".join(pieces), tuple(pieces[1::2]))


def _marked(mark: str, rng: random.Random) -> str:
    if mark.startswith("="):
        return mark[1:]
    return rng.choice(PEOPLE[mark]) if mark in PEOPLE else draw(f"{{{mark}}}", rng)


def ordinary_requests(folders: Sequence[Path], count: int, rng: random.Random) -> Iterator[Texts]:
    """Yield requests at random places of random files; every second one names its kind of file."""
    files = sorted(path for folder in folders for path in folder.rglob("*.*") if path.name.endswith(ENDINGS))
    files = [path for path in files if not WITH_SECRETS.search(str(path))]
    made = 0
    while made < count:
        path = rng.choice(files)
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if text.strip():
            cursor = rng.randrange(len(text))
            language = path.suffix[1:] if made % 2 else ""
            yield Texts(text[max(0, cursor - PREFIX) : cursor], (), text[cursor : cursor + SUFFIX], language)
            made += 1


def hostile_texts(rng: random.Random) -> dict[str, str]:
    """Return texts of a megabyte on which a search for secrets might take long."""
    token, key = draw("ghp_{a36}", rng), private_key(rng)
    parts = {
        "blanks": " ",
        "a password and blanks": "password" + " " * 600 + "=",
        "made-up secrets": f'password = "{draw("{a12}", rng)}" # {token}\n',
        "private keys": key + "\n",
        "starts of web tokens": "eyJ",
        "quotes after names": 'secret="',
    }
    return {name: (part * (MEGABYTE // len(part) + 1))[:MEGABYTE] for name, part in parts.items()}
