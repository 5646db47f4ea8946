"""Benchmarks of tasks, in a process of their own, since evals cannot import tasks."""

import subprocess
import sys
from collections.abc import Mapping

from evals.bench.figures import Bench, Figure, file_of, read
from infra.settings import ROOT

COMMANDS: Mapping[str, str] = {
    "join": "tasks.bench_join",
    "caps": "tasks.experiments.bench_caps",
    "experiments": "tasks.experiments.bench_experiments",
    "showing": "tasks.showing.bench_showing",
    "recipes": "tasks.recipes.bench_recipes",
    "shape": "tasks.versions.bench_shape",
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
