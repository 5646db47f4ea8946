"""Files with made-up secrets of every kind."""

import json
import random
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from evals.bench.redaction.corpus import draw, private_key

TEMPLATES = tomllib.loads(Path(__file__).with_name("made_up_secrets.toml").read_text())
BY_NAME: Mapping[str, tuple[str, str]] = {kind: (name, value) for kind, (name, value) in TEMPLATES["by_name"].items()}
"""Kinds that only their name gives away: usual name, value."""
FORMS: Mapping[str, tuple[str, Callable[[str, str], str]]] = {
    "python": ("py", lambda name, value: f'import os\n\n\ndef connect():\n    {name} = "{value}"\n    return open({name})\n'),
    "yaml": ("yaml", lambda name, value: f"service:\n  port: 80\n  {name}: {value}\n  host: db\n"),
    "env": ("env", lambda name, value: f"PORT=80\n{name.upper()}={value}\nHOST=db\n"),
    "json": ("json", lambda name, value: json.dumps({"port": 80, name: value, "host": "db"}, indent=2)),
    "toml": ("toml", lambda name, value: f'[service]\nport = 80\n{name} = "{value}"\nhost = "db"\n'),
    "shell": ("sh", lambda name, value: f"export PORT=80\nexport {name.upper()}='{value}'\nmake run\n"),
}
"""Files by their form: ending, and text of a file with a named value."""
NEUTRAL = "entry"  # a name that gives nothing away


def cases(rng: random.Random) -> list[tuple[str, str, str, str, str]]:
    """Return one file for each kind and form: kind, form, ending, text, and the secret in it."""
    shapes, lines = ([(kind, (NEUTRAL, value)) for kind, value in TEMPLATES[name].items()] for name in ("by_shape", "lines"))
    made = []
    for form, (ending, write) in FORMS.items():
        for kind, (name, template) in (*shapes, *BY_NAME.items(), *lines):
            value = draw(template, rng)
            made.append((kind, form, ending, write(name, value), value if kind in BY_NAME else hidden(template, value)))
        key = private_key(rng)
        made.append(("private key", form, ending, write(NEUTRAL, key.replace("\n", "\\n")), key.split("\n")[3]))
    for kind, template in TEMPLATES["commands"].items():
        value = draw(template, rng)
        made.append((kind, "shell", "sh", f"set -e\n{value}\n", hidden(template, value)))
    return made


def hidden(template: str, value: str) -> str:
    """Return the longest drawn run of a value: no part of it may stay."""
    pattern = re.escape(re.sub(r"\{(?:[a-zA-Z]\d+|basic)\}", "\0", template)).replace("\0", "(.+)")
    match = re.fullmatch(pattern.replace("\\\0", "(.+)"), value)
    assert match, (template, value)
    return max(match.groups(), key=len, default=value)
