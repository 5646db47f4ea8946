"""Redaction: cost of an ordinary request, delay beside hostile ones, kinds of secrets found, ordinary code that loses anything.

Ordinary code is the standard library and the installed packages without their tests, cut at random places as editors send it. The
delay is that of an innocent completion's recording, in one process with the recording of hostile texts of a megabyte.
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.bench.made_up_secrets import cases, draw, private_key
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.texts import Texts

REQUESTS = 4_000
PREFIX, SUFFIX = 3_000, 1_000
"""Most characters before and after the cursor that editors send."""
ENDINGS = ("py", "pyi", "js", "ts", "h", "c", "cpp", "sh", "md", "toml", "yaml", "yml", "cfg", "ini")
WITH_SECRETS = re.compile(r"/(tests?|testing|examples?|idlelib)/|/test_|_test\.|conftest|detect_secrets|/ssl/")
"""Files that hold made-up secrets on purpose."""
MEGABYTE = 900_000
SEEDS = 3


def ordinary_requests(folders: Sequence[Path], count: int, rng: random.Random) -> Iterator[Texts]:
    """Yield requests at random places of random files; every second one names its kind of file."""
    files = sorted(path for folder in folders for ending in ENDINGS for path in folder.rglob(f"*.{ending}"))
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


def changed(redactor: Redactor, request: Texts) -> list[str]:
    """Return the lines of a request that lose anything."""
    redacted = redactor.redact(request)
    pairs = ((request.prefix, redacted.prefix), (request.suffix, redacted.suffix))
    return [line for before, after in pairs for line in after.split("\n") if before != after and REDACTED in line]


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


def missed(redactor: Redactor) -> tuple[set[str], set[str]]:
    """Return the kinds that are tried, and those of which something stays in some form."""
    tried, found_not = set(), set()
    for seed in range(SEEDS):
        for kind, _, ending, text, secret in cases(random.Random(seed)):
            tried.add(kind)
            for language in (ending, ""):
                if secret[:8] in redactor.text(text, language) or secret[-8:] in redactor.text(text, language):
                    found_not.add(kind)
    return tried, found_not
