"""What recipes learn from the same simulated developers (tasks/recipes/bench_recipes.py); hours, and a new call goes on."""

import asyncio

from evals.bench.figures import Figure
from evals.bench.process import figures_of
from infra.settings import Settings


async def run(settings: Settings) -> list[Figure]:
    """Run the benchmark and return its figures."""
    return await asyncio.to_thread(figures_of, "tasks.recipes.bench_recipes", "recipes", tell=True)
