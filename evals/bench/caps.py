"""Attacks on training and on the A/B gate, by simulation through their code (tasks/experiments/bench_caps.py)."""

import asyncio

from evals.bench.figures import Figure
from evals.bench.process import figures_of
from infra.settings import Settings


async def run(settings: Settings) -> list[Figure]:
    """Run the benchmark and return its figures."""
    return await asyncio.to_thread(figures_of, "tasks.experiments.bench_caps", "caps")
