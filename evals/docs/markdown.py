"""Tables and escapes of the generated pages."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return inline code; nothing for an empty text."""
    return f"`{text}`" if text else ""


def anchor(name: str) -> str:
    """Return an element to which links of the form PAGE#NAME lead."""
    return f'<a id="{name}"></a>'


def prose(text: str) -> str:
    """Return a docstring as one line of Markdown, in which `<` and names with underscores or stars stay as they are."""
    words = " ".join(text.split()).replace("<", "&lt;")
    return "".join(part if part.startswith("`") else re.sub(r"([*_])", r"\\\1", part) for part in re.split(r"(`[^`]*`)", words))
