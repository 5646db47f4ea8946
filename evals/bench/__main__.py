"""The benchmarks: python -m evals.bench [NAME...]

Needs the stack (`make up`) and no A/B test under way; the schedules are paused meanwhile. Exit code 1 where a target is missed.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from rich.console import Console

from evals.bench import feedback, figures, loop, serving
from evals.bench.figures import Figure
from evals.demo.loop import CYCLE, WATCH
from evals.demo.orchestration import Orchestration
from infra import settings as configuration
from infra.registry import Registry
from infra.settings import Settings

BENCHES: dict[str, Callable[[Settings], Awaitable[list[Figure]]]] = {
    "serving": serving.run,
    "feedback": feedback.run,
    "loop": loop.run,
}


async def bench(settings: Settings, names: Sequence[str], console: Console) -> bool:
    """Run benchmarks one after another while nothing else of the loop runs; whether all targets are met.

    Raises:
        RuntimeError: an A/B test runs.
    """
    met = True
    async with Orchestration(settings.orchestration.api) as prefect:
        for deployment in (CYCLE, WATCH):
            await prefect.pause(deployment, True)
        try:
            while await prefect.busy():
                await asyncio.sleep(1.0)
            if test := Registry.connect(settings.registry).aliases().experiment:
                raise RuntimeError(f"A/B test {test.id} runs, which would be disturbed; wait for its verdict, then again")
            for name in names:
                met &= figures.write(name, await BENCHES[name](settings), console)
        finally:
            for deployment in (CYCLE, WATCH):
                await prefect.pause(deployment, False)
    return met


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals.bench", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default all: {', '.join(BENCHES)})")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    return 0 if asyncio.run(bench(configuration.load(), names or list(BENCHES), Console())) else 1


if __name__ == "__main__":
    sys.exit(main())
