"""The closing comparison: the same developers meet the base and the champion at the same positions."""

import argparse
import asyncio
import time

from evals import developers
from evals.demo.loop import Interval, Loop
from evals.positions import Code
from infra.registry import CHALLENGER, Registry
from infra.settings import Settings

BASE = "1"
"""Version that the stack registers on its first start."""
SWAP_SECONDS = 60.0


async def compare_with_base(
    options: argparse.Namespace, settings: Settings, code: Code, registry: Registry, champion: str, loop: Loop
) -> developers.PairedRun:
    """Serve the base in the challenger's slot, without an experiment, and measure both versions.

    Raises:
        RuntimeError: the versions are not both served.
    """
    loop.say(f"closing comparison: base (version {BASE}) and champion (version {champion}), {options.visits} positions")
    challenger = (await asyncio.to_thread(registry.aliases)).challenger  # of a test without a verdict
    if champion != BASE:
        await asyncio.to_thread(registry.set_alias, CHALLENGER, BASE)
    try:
        run = run_settings(options, settings)
        await _until_served(run, code, {BASE, champion})
        message = Interval()

        def progress(done: int) -> None:
            if message.due():
                loop.say(f"closing comparison: {done} of {options.visits} positions")

        return await developers.measure(run, code, (BASE, champion), options.visits, progress=progress)
    finally:
        if challenger is not None:
            await asyncio.to_thread(registry.set_alias, CHALLENGER, challenger)
        elif champion != BASE:
            await asyncio.to_thread(registry.delete_alias, CHALLENGER)


async def _until_served(run: developers.RunSettings, code: Code, versions: set[str]) -> None:
    deadline = time.monotonic() + SWAP_SECONDS
    while time.monotonic() < deadline:
        trial = await developers.measure(run, code, sorted(versions), 1)
        if not trial.dropped:
            return
        await asyncio.sleep(1.0)
    raise RuntimeError(f"serving: versions {sorted(versions)} are not both served after {SWAP_SECONDS:.0f} s; see var/stack/logs")


def run_settings(options: argparse.Namespace, settings: Settings, *, first_visit: int = 0) -> developers.RunSettings:
    """Return the settings of a run of the demo's developers."""
    return developers.RunSettings(
        address=developers.stack_address(settings),
        users=options.users,
        seed=options.seed,
        rate=options.rate,
        concurrency=options.concurrency,
        first_visit=first_visit,
        examples=20_000,
    )
