"""The decision to show against plain rules, on completions of simulated developers (tasks/showing/bench_showing.py)."""

import asyncio

from evals.bench.figures import Figure
from evals.bench.process import figures_of
from infra.settings import Settings


async def run(settings: Settings) -> list[Figure]:
    """Run the benchmark and return its figures."""
    return await asyncio.to_thread(figures_of, "tasks.showing.bench_showing", "showing")
