"""Benchmarks of tasks, in a process of their own, since evals cannot import tasks."""

import subprocess
import sys
from collections.abc import Mapping

from evals.bench.figures import Bench, Figure, file_of, read
from infra.settings import ROOT

COMMANDS: Mapping[str, str] = {
    "join": "evals.bench.join",
    "caps": "evals.bench.experiments.caps",
    "experiments": "evals.bench.experiments.tests",
    "showing": "evals.studies.showing.bench",
    "recipes": "evals.studies.recipes.bench",
    "shape": "evals.bench.shape.loop",
}
"""Modules by benchmark. Each takes --quick, tells its progress and figures itself, and writes them to var/bench."""


def run_command(bench: Bench) -> list[Figure]:
    """Run a benchmark of tasks and return its figures.

    Raises:
        RuntimeError: it wrote no figures; its error is in the output above.
    """
    module, output = COMMANDS[bench.name], file_of(bench.name, bench.quick, bench.folder)
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, *(["--quick"] if bench.quick else [])]
    with bench.progress.aside(f"{bench.name}: python -m {module}", work=bench.minutes):
        process = subprocess.run(command, cwd=ROOT, check=False)
    if not output.exists():  # the exit status also tells whether the targets are met, so it does not mark a failure
        raise RuntimeError(f"{bench.name}: exit status {process.returncode} and no figures; run it alone: python -m {module}")
    return read(bench.name, bench.quick, bench.folder)
