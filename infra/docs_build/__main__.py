"""Write the sources of the documentation's site: python -m infra.docs_build APP FOLDER, from `python -m serving --describe`."""

import json
import sys
from pathlib import Path

from infra.docs_build.site import write
from infra.settings import ROOT

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("docs_build: expected two arguments, APP and FOLDER; `make docs` gives them")
    count = write(ROOT, json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(f"{count} pages in {sys.argv[2]}")
