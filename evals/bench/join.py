"""The data path: a million completions joined, validated and batched, and two million (tasks/bench_join.py)."""

import asyncio
import json
import subprocess
import sys

from evals.bench.figures import FOLDER, Figure
from infra.settings import ROOT, Settings


async def run(settings: Settings) -> list[Figure]:
    """In processes of its own: what is measured lies above this room.

    Raises:
        RuntimeError: it failed, with the end of what it said.
    """
    return await asyncio.to_thread(measured)


def measured() -> list[Figure]:
    kept = FOLDER / "join.json"
    kept.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", "tasks.bench_join"], cwd=ROOT, capture_output=True, text=True, check=False)
    if not kept.exists():  # its exit status says whether the targets are met, too
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-2000:]}\nto run it alone: python -m tasks.bench_join")
    return [Figure(**row) for row in json.loads(kept.read_text())]
