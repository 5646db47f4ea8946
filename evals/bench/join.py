"""The data path: joins, validates and batches one million completions, then two million (tasks/bench_join.py)."""

import asyncio
import json
import subprocess
import sys

from evals.bench.figures import FOLDER, Figure
from infra.settings import ROOT, Settings


async def run(settings: Settings) -> list[Figure]:
    """Run the benchmark in a process of its own, since evals cannot import tasks.

    Raises:
        RuntimeError: it failed; holds the end of its output.
    """
    return await asyncio.to_thread(run_process)


def run_process() -> list[Figure]:
    """Run `python -m tasks.bench_join` and return the figures that it writes."""
    output = FOLDER / "join.json"
    output.unlink(missing_ok=True)
    process = subprocess.run([sys.executable, "-m", "tasks.bench_join"], cwd=ROOT, capture_output=True, text=True, check=False)
    if not output.exists():  # the exit status also tells whether the targets are met, so it does not mark a failure
        raise RuntimeError(
            f"exit status {process.returncode}: {process.stderr[-2000:]}\nto run it alone: python -m tasks.bench_join"
        )
    return [Figure(**row) for row in json.loads(output.read_text())]
