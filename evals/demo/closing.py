"""The closing comparison: the same developers meet the base at its best and the champion at the same positions of each ground.

The champion is served as its users get it, with its estimate of the kept characters; the base has no estimate and shows whole
completions. The records of the champion's completions have what was held back: with it, `all_shown` separates the gain of
training from the gain of the decision to show. `calibration` says how far the chances can be trusted by which the champion showed
its own.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

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
COLUMNS = ("id", "text", "held_back", "chance", "audited")
"""Columns of a recorded completion that are read."""
SHIP_SECONDS = 30.0
"""Longest wait for the last events to reach the object store."""
SHARES: dict[Ground, float] = {"later": 1.0, "new": 1 / 4}
"""Positions on each ground, as a share of --visits."""


def best_temperature(settings: Settings) -> float:
    """Return the temperature at which the base is at its best, as its generation_config.json names it."""
    return float(json.loads((path(settings.model.base) / "generation_config.json").read_text())["temperature"])


def pins_of(settings: Settings, champion: str) -> dict[str, developers.Pin]:
    """Return the pins that are compared: the base at its best first, then the champion.

    The base as served is one of them where it differs from the base at its best.
    """
    best, served = best_temperature(settings), settings.serving.sampling.temperature
    pins = {"base_best": developers.Pin(BASE, temperature=best), "champion": developers.Pin(champion)}
    if served != best:
        pins["base_served"] = developers.Pin(BASE)
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
            pins, count = tuple(pins_of(settings, champion).values()), max(1, round(visits * SHARES[ground]))
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


class Recorded(NamedTuple):
    """A completion of the champion, as the server recorded it."""

    whole: str  # what was sampled, shown or not
    held_back: bool  # not all of it was shown
    chance: float | None  # by which it was shown; None where an audit showed all of it, and without an estimate


def recorded(
    store: ObjectStore,
    since: float,
    paired: developers.PairedRun,
    clock: Callable[[], float] = time.time,
    wait: float = SHIP_SECONDS,
) -> dict[str, Recorded]:
    """Return the champion's completions of a paired run by id, once all of them have reached the object store.

    Those that have not after `wait` seconds are missing. `since`: when the run began, in Unix seconds; `clock`: unix seconds.
    """
    wanted = {pair.ids[CHAMPION] for pair in paired.pairs}
    deadline = time.monotonic() + wait
    while True:
        found = dict(_recorded(store, event_keys(store, "completions", since, clock()), wanted))
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


def _recorded(store: ObjectStore, keys: Iterable[str], wanted: Set[str]) -> Iterator[tuple[str, Recorded]]:
    for _, part in fetch(store, tuple(keys), COLUMNS):
        for row in part.table.to_pylist():
            if row["id"] in wanted:
                held_back, audited = row.get("held_back") or "", row.get("audited")
                yield row["id"], Recorded(row["text"] + held_back, bool(held_back), None if audited else row.get("chance"))


def all_shown(
    paired: developers.PairedRun, ground: Ground, people: developers.RunSettings, code: Code, champion: Mapping[str, Recorded]
) -> developers.PairedRun | None:
    """Return a paired run with one outcome more at each place: that of the champion's completion, had all of it been shown.

    None where a completion of the champion is not among the recorded ones.
    """
    if any(pair.ids[CHAMPION] not in champion for pair in paired.pairs):
        return None
    schedule = developers.Schedule(people.users, people.seed, code, people.quirks)

    def added(pair: developers.Pair) -> developers.Pair:
        name, outcome = pair.ids[CHAMPION], pair.outcomes[CHAMPION]
        if champion[name].held_back:
            outcome, _ = schedule.first_pause(pair.visit, ground).answer(champion[name].whole)
        return replace(pair, outcomes=(*pair.outcomes, outcome), ids=(*pair.ids, name))

    return replace(paired, pins=(*paired.pins, paired.pins[CHAMPION]), pairs=tuple(map(added, paired.pairs)))


def calibration(paired: developers.PairedRun, champion: Mapping[str, Recorded]) -> Reliability | None:
    """Return the reliability of the champion's chances at the places of a paired run; None without an estimate.

    Of a shown completion, the share that is kept is that of its characters which stay, times the chance that it is accepted.
    """
    kept = {
        pair.ids[CHAMPION]: outcome.kept_characters / len(outcome.shown)
        for pair in paired.pairs
        if (outcome := pair.outcomes[CHAMPION]).shown.strip()
    }
    chances = {name: chance for name in kept if name in champion and (chance := champion[name].chance) is not None}
    if not chances:
        return None
    return reliability(list(chances.values()), [kept[name] for name in chances])
