"""The closing comparison: the same developers meet the base at its best and the champion at the same positions of each ground.

The champion is served as its users get it, with its estimate of the kept characters; the base has no estimate and shows whole
completions. `calibration` says how far the chances can be trusted by which the champion showed its own.
"""

import asyncio
import json
import time
from collections.abc import Callable, Set

from evals import developers
from evals.demo.view import View
from evals.developers import GROUNDS, Ground
from infra.registry.client import CHALLENGER, Registry
from infra.settings import Settings, path
from infra.storage.events.read import event_keys, fetch
from infra.storage.store import ObjectStore
from tasks.evaluation.positions import Code
from tasks.showing.reliability import Reliability, reliability

BASE = "1"
"""Version that the stack registers on its first start."""
SWAP_SECONDS = 60.0
CHAMPION = 1
"""Place of the champion among the pins of a paired run."""
SHIP_SECONDS = 30.0
"""Longest wait for the last events to reach the object store."""
SHARES: dict[Ground, float] = {"later": 1.0, "new": 1 / 3}
"""Positions on each ground, as a share of --visits."""


def best_temperature(settings: Settings) -> float:
    """Return the temperature at which the base is at its best, as its generation_config.json names it."""
    return float(json.loads((path(settings.model.base) / "generation_config.json").read_text())["temperature"])


def pins_of(settings: Settings, champion: str, ground: Ground) -> dict[str, developers.Pin]:
    """Return the pins that are compared on a ground: the base at its best first, then the champion.

    The base as served is one of them where it differs from the base at its best. On later code the champion at the level `all` is
    one: it separates the gain of training from the gain of the decision to show.
    """
    best, served = best_temperature(settings), settings.serving.sampling.temperature
    pins = {"base_best": developers.Pin(BASE, temperature=best), "champion": developers.Pin(champion)}
    if served != best:
        pins["base_served"] = developers.Pin(BASE)
    if ground == "later" and champion != BASE:
        pins["champion_all"] = developers.Pin(champion, level="all")
    return pins


async def compare_with_base(
    run: developers.RunSettings, visits: int, settings: Settings, code: Code, registry: Registry, champion: str, view: View
) -> dict[Ground, developers.PairedRun]:
    """Serve the base in the challenger's slot, without an experiment, and measure both versions on each ground.

    Raises RuntimeError where the versions are not both served.
    """
    view.say(f"closing comparison: base (version {BASE}) and champion (version {champion}), {visits} positions")
    view.arms(())
    challenger = (await asyncio.to_thread(registry.aliases)).challenger  # of a test without a verdict
    if champion != BASE:
        await asyncio.to_thread(registry.set_alias, CHALLENGER, BASE)
    try:
        await _until_served(run, code, {BASE, champion})
        measured = {}
        for ground in GROUNDS:
            pins, count = tuple(pins_of(settings, champion, ground).values()), max(1, round(visits * SHARES[ground]))
            with view.part(f"closing comparison, {ground}", count) as part:
                measured[ground] = await developers.measure(run, code, pins, count, ground=ground, progress=part.at)
        return measured
    finally:
        if challenger is not None:
            await asyncio.to_thread(registry.set_alias, CHALLENGER, challenger)
        elif champion != BASE:
            await asyncio.to_thread(registry.delete_alias, CHALLENGER)


async def _until_served(run: developers.RunSettings, code: Code, versions: set[str]) -> None:
    deadline = time.monotonic() + SWAP_SECONDS
    while time.monotonic() < deadline:
        trial = await developers.measure(run, code, [developers.Pin(version) for version in sorted(versions)], 1)
        if not trial.dropped:
            return
        await asyncio.sleep(1.0)
    raise RuntimeError(
        f"serving: versions {sorted(versions)} are not served after {SWAP_SECONDS:.0f} s; next: `tabloop logs serving`"
    )


def calibration(
    store: ObjectStore, since: float, paired: developers.PairedRun, clock: Callable[[], float] = time.time
) -> Reliability | None:
    """Return the reliability of the champion's chances at the places of a paired run; None without an estimate.

    Of a shown completion, the share that is kept is that of its characters which stay, times the chance that it is accepted.

    `since`: when the run began, in Unix seconds; `clock`: unix seconds.
    """
    kept = {
        pair.ids[CHAMPION]: outcome.kept_characters / len(outcome.shown)
        for pair in paired.pairs
        if (outcome := pair.outcomes[CHAMPION]).shown.strip()
    }
    chances = recorded_chances(store, since, kept.keys(), clock)
    if not chances:
        return None
    return reliability(list(chances.values()), [kept[name] for name in chances])


def recorded_chances(
    store: ObjectStore, since: float, wanted: Set[str], clock: Callable[[], float] = time.time, wait: float = SHIP_SECONDS
) -> dict[str, float]:
    """Return the chances by which some completions were shown, by id, once all of them have reached the object store.

    Those that an audit showed whole are left out, and those that no estimate decided on.
    """
    deadline, found = time.monotonic() + wait, dict[str, float | None]()
    while True:
        for _, part in fetch(store, event_keys(store, "completions", since, clock()), ("id", "chance", "audited")):
            rows = part.table.select(["id", "chance", "audited"]).to_pylist() if "chance" in part.table.column_names else []
            found |= {row["id"]: None if row["audited"] else row["chance"] for row in rows if row["id"] in wanted}
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return {name: chance for name, chance in found.items() if chance is not None}
        time.sleep(1.0)
