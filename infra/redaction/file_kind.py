"""How a file writes values: in quotes as in code, or bare as in files of settings.

The client names the file's ending or language. If it does not, or if the ending may be of any kind (".local", ".bak"), the lines
around the cursor decide.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from infra.redaction.patterns import compile_bytes

Values = Literal["quoted", "words", "lines"]
"""quoted: values are literals in quotes, everything else is code. words: a bare value ends at a blank. lines: it ends with its
line."""
ENDINGS = tomllib.loads(Path(__file__).with_name("file_kinds.toml").read_text())
KINDS: Mapping[str, Values] = {name: form for form in get_args(Values) for name in ENDINGS[form]}
"""How files of each ending or language write values."""
NEAR_CHARACTERS = 2_000
"""Characters on each side of the cursor that are looked at."""
MOST_LINES = 60
"""Lines of them that are looked at."""
SHARE = 0.8
"""Least share of lines that look like a file of settings."""
COMMENTS = (b"#", b"//", b";", b"---")
YAML = compile_bytes(r"^\s*(?:- +)?[\w.\-/\"']+:(?:\s+[^\s({\[]([^(){};]*[^(){};,:])?|\s*|\s+[\"'].*[\"'])$|^\s*- +[^(){};]*$")
ENV = compile_bytes(r"^\s*(?:export |set |setx |ENV |ARG )?[A-Za-z_][\w.\-]*=(?:[^\s=(].*)?$")
INI = compile_bytes(r"^\s*\[[\w .\-:\"]+\]\s*$|^\s*[A-Za-z_][\w.\-]*\s*[=:]\s*[^(){}]*$")
SECTION = compile_bytes(r"^\s*\[[\w .\-:\"]+\]\s*$")
SHEBANG = compile_bytes(r"^#! *\S*(?:sh|env \w*sh)\b")
SHELL = compile_bytes(r"^\s*(?:export \w+=|curl |docker |kubectl |helm |ssh |sudo )")
PYTHON_BLOCK = compile_bytes(r"^\s*(?:else|try|finally|default|except\b.*|case\b.*|public|private|protected|lambda\b.*):\s*$")


def values(language: str, prefix: bytes, suffix: bytes) -> Values:
    """Return how a file writes values, by its ending or language, else by the text near the cursor."""
    if form := KINDS.get(language):
        return form
    half = MOST_LINES // 2
    before, after = prefix.split(b"\n"), suffix.split(b"\n")
    near = [*before[-half:-1], before[-1] + after[0], *after[1:half]]
    lines = [line for line in (line[:400].strip() for line in near) if line and not line.startswith(COMMENTS)]
    if SHEBANG.match(before[0]):
        return "words"
    if not lines:
        return "quoted"
    # What a pattern cannot do without is looked for first: that rules most lines of code out for a tenth of the time.
    if _mostly(lines, lambda line: b"=" in line and ENV.match(line) is not None) or any(SHELL.match(line) for line in lines[:3]):
        return "words"
    if _mostly(lines, _is_yaml):
        return "lines"
    sections = any(line.startswith(b"[") and SECTION.match(line) for line in lines)
    if sections and _mostly(lines, lambda line: INI.match(line) is not None):
        return "lines"
    return "quoted"


def _is_yaml(line: bytes) -> bool:
    may_be = b":" in line or line.startswith(b"-")
    return may_be and YAML.match(line) is not None and PYTHON_BLOCK.match(line) is None


def _mostly(lines: Sequence[bytes], has_form: Callable[[bytes], bool]) -> bool:
    """Return whether SHARE of the lines have a form; stops at the first line that rules it out."""
    others = (1 - SHARE) * len(lines)
    for line in lines:
        if not has_form(line):
            others -= 1
            if others < 0:
                return False
    return True
