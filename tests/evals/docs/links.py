"""The links of pages in Markdown, and those that lead nowhere."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
SPAN = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
ANCHOR = re.compile(r'\bid="([^"]+)"')
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


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


def dead_links(pages: Mapping[str, str], files: Collection[str] = ()) -> list[str]:
    """Return the links of pages that lead to no page, no anchor, no other file, or out of the site by a path.

    Args:
        files: paths of the site's other files, as pictures.
    """
    known = {path: anchors(text) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        for link in links(text):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            page = _resolve(path, target)
            if page in files:
                continue
            if page not in known:
                wrong.append(f"{path}: {link}: no such page")
            elif anchor and anchor not in known[page]:
                wrong.append(f"{path}: {link}: {page} has no such anchor")
    return wrong


def _resolve(page: str, target: str) -> str:
    """Return the path of a link's target, from the page's; above the site it begins with `..`."""
    if not target:
        return page
    parts: list[str] = []
    for part in (*PurePosixPath(page).parent.parts, *PurePosixPath(target).parts):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
