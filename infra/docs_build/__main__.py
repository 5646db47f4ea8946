"""Write the sources of the documentation's site: python -m infra.docs_build APP FOLDER, from `python -m serving --describe`."""

import json
import shutil
import sys
from pathlib import Path

from infra.docs_build.site import dead_links, sources
from infra.settings import ROOT

WRITTEN = ROOT / "infra/docs"


def main(app: Path, folder: Path) -> int:
    """Write pages and assets into a folder, which is emptied before. Exit code 1: a link is dead."""
    pages = sources(ROOT, json.loads(app.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(WRITTEN, folder, ignore=shutil.ignore_patterns("*.md"))
    for path, text in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix != ".md"}
    dead = dead_links(pages, files)
    print("\n".join(dead) or f"{len(pages)} pages in {folder}", file=sys.stderr if dead else sys.stdout)
    return 1 if dead else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("docs_build: expected two arguments, APP and FOLDER; `make docs` gives them")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
