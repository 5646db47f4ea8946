"""Made-up secrets of every kind that redaction knows, in every form of file in which they can stand.

Values are drawn when they are needed, from the templates of made_up_secrets.toml: `{a36}` stands for 36 characters of the
alphabet `a`. So no scanner of this repository finds a secret, and none is a copy of redaction's own patterns.
"""

import base64
import json
import random
import re
import string
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ALPHABETS = {
    "d": string.digits,
    "l": string.ascii_lowercase,
    "x": "0123456789abcdef",
    "a": string.ascii_letters + string.digits,
    "b": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
    "s": string.ascii_letters + string.digits + "+/",
}
TEMPLATES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
BY_SHAPE: Mapping[str, str] = TEMPLATES["by_shape"]
"""Kinds whose own form gives them away."""
BY_NAME: Mapping[str, tuple[str, str]] = {kind: (name, value) for kind, (name, value) in TEMPLATES["by_name"].items()}
"""Kinds that only their name gives away: usual name, value."""
LINES: Mapping[str, str] = TEMPLATES["lines"]
"""Kinds that stand in a longer line."""
COMMANDS: Mapping[str, str] = TEMPLATES["commands"]
"""Kinds of a shell or of a file of their own."""
FORMS: Mapping[str, tuple[str, Callable[[str, str], str]]] = {
    "python": ("py", lambda name, value: f'import os\n\n\ndef connect():\n    {name} = "{value}"\n    return open({name})\n'),
    "yaml": ("yaml", lambda name, value: f"service:\n  port: 80\n  {name}: {value}\n  host: db\n"),
    "env": ("env", lambda name, value: f"PORT=80\n{name.upper()}={value}\nHOST=db\n"),
    "json": ("json", lambda name, value: json.dumps({"port": 80, name: value, "host": "db"}, indent=2)),
    "toml": ("toml", lambda name, value: f'[service]\nport = 80\n{name} = "{value}"\nhost = "db"\n'),
    "shell": ("sh", lambda name, value: f"export PORT=80\nexport {name.upper()}='{value}'\nmake run\n"),
}
"""Files by their form: ending, and text of a file with a named value."""
NEUTRAL = "entry"
"""A name that gives nothing away."""


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


def cases(rng: random.Random) -> list[tuple[str, str, str, str, str]]:
    """Return one file for each kind and form: kind, form, ending, text, and the secret in it."""
    made = []
    for form, (ending, write) in FORMS.items():
        for kind, template in BY_SHAPE.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(NEUTRAL, value), hidden(template, value)))
        for kind, (name, template) in BY_NAME.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(name, value), value))
        for kind, template in LINES.items():
            value = draw(template, rng)
            made.append((kind, form, ending, write(NEUTRAL, value), hidden(template, value)))
        key = private_key(rng)
        made.append(("private key", form, ending, write(NEUTRAL, key.replace("\n", "\\n")), key.split("\n")[3]))
    for kind, template in COMMANDS.items():
        value = draw(template, rng)
        made.append((kind, "shell", "sh", f"set -e\n{value}\n", hidden(template, value)))
    return made


def hidden(template: str, value: str) -> str:
    """Return the longest drawn run of a value: no part of it may stay."""
    pattern = re.escape(re.sub(r"\{(?:[a-zA-Z]\d+|basic)\}", "\0", template)).replace("\0", "(.+)")
    pattern = pattern.replace("\\\0", "(.+)")
    match = re.fullmatch(pattern, value)
    assert match, (template, value)
    return max((match[number + 1] for number in range(len(match.groups()))), key=len, default=value)
