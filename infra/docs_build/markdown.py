"""Tables and escapes of the generated pages, and the anchors and links of any page."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
SPAN = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
ANCHOR = re.compile(r'\bid="([^"]+)"')
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


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


def slug(heading: str) -> str:
    """Return the anchor of a heading, as MkDocs makes it."""
    text = unicodedata.normalize("NFKD", re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", heading)).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: str) -> set[str]:
    """Return the anchors of a page: its headings and the ids of its elements."""
    text = FENCE.sub("", page)
    found: set[str] = set()
    for heading in HEADING.findall(text):
        name, number = slug(heading), 0
        while (unique := f"{name}_{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found | set(ANCHOR.findall(text))


def links(page: str) -> Iterator[str]:
    """Yield the targets of the page's links, outside of code."""
    yield from LINK.findall(SPAN.sub("", INDENTED.sub("", FENCE.sub("", page))))
