"""A benchmark of tasks, in a process of its own, since evals cannot import tasks."""

import json
import subprocess
import sys

from evals.bench.figures import FOLDER, Figure
from infra.settings import ROOT


def figures_of(module: str, name: str, tell: bool = False) -> list[Figure]:
    """Run `python -m MODULE` and return the figures that it writes to var/bench/NAME.json.

    `tell`: what it prints appears here, since it takes long.

    Raises:
        RuntimeError: it failed; holds the end of its output.
    """
    output = FOLDER / f"{name}.json"
    output.unlink(missing_ok=True)
    out = None if tell else subprocess.PIPE
    process = subprocess.run([sys.executable, "-m", module], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    if not output.exists():  # the exit status also tells whether the targets are met, so it does not mark a failure
        raise RuntimeError(f"exit status {process.returncode}: {process.stderr[-2000:]}\nto run it alone: python -m {module}")
    return [Figure(**row) for row in json.loads(output.read_text())]
