"""Put the site's sources together: written pages with their diagrams drawn, and generated pages."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from infra.docs_build import commands_page, http_page, records_page, settings_page
from infra.docs_build.diagram import svg
from infra.docs_build.markdown import anchors, links

MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MEASUREMENTS = "measurements.md"
"""Page whose entries name the commands of their day."""
GENERATED = (
    "operate/settings.md",
    "operate/metrics.md",
    "reference/http.md",
    "reference/events.md",
    "reference/records.md",
    "reference/commands.md",
)
"""Pages that are made by the build and stand nowhere in the repository."""


def written(root: Path) -> dict[str, str]:
    """Return the pages of infra/docs by their path in the site."""
    folder = root / "infra/docs"
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.md"))}


def generated(root: Path, app: Mapping[str, Any]) -> dict[str, str]:
    """Return the generated pages by their path; `app` is what `python -m serving --describe` prints."""
    readmes = [file.read_text() for file in sorted(root.glob("*/README.md"))]
    today = [text for path, text in written(root).items() if path != MEASUREMENTS]
    pages = (
        settings_page.page(),
        http_page.metrics_page(app["metrics"]),
        http_page.http_page(app),
        records_page.events_page(),
        records_page.others_page(),
        commands_page.page(root, [*readmes, *today]),
    )
    return dict(zip(GENERATED, pages, strict=True))


def sources(root: Path, app: Mapping[str, Any]) -> dict[str, str]:
    """Return all pages by their path, with diagrams as SVG. Raises DiagramError."""
    made = generated(root, app)
    if clashes := made.keys() & (pages := written(root)).keys():
        raise ValueError(f"infra/docs: {', '.join(sorted(clashes))} would be replaced by a generated page; give it another name")
    drawn = {path: MERMAID.sub(lambda match: _figure(match[1]), text) for path, text in pages.items()}
    return drawn | made


def _figure(source: str) -> str:
    return f'<figure class="diagram">\n{svg(source)}\n</figure>'


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
