"""The history of a version, from the objects that its cycle, its experiment and its moves left in the store."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from infra.pages import figures
from infra.pages.experiment_view import divided
from infra.pages.figures import when
from infra.records import CycleOutcome, Decision, ExperimentRecord, Look, Manifest, Move, StageName
from infra.storage import cycles
from infra.storage import looks as looks_log
from infra.storage import moves as log
from infra.storage.scope import Scope
from infra.storage.store import ObjectStore
from tasks.experiments.reports.history import anchor_line, anchors, line, look_line
from tasks.versions.review import object_of

Section = tuple[str, list[str]]
"""A title and its lines."""


class UnknownVersion(LookupError):
    """Nothing in the store names the version."""


def explain(store: ObjectStore, version: str) -> Iterator[Section]:
    """Yield the sections of a version's history, in the order of the events.

    Raises:
        UnknownVersion: no cycle made it, and no move names it.
    """
    outcome = _outcome(store, version)
    own = cycles.project_of(outcome.cycle) if outcome else ""
    # A version of the common loop may be champion of a project, too.
    loops = [Scope(project).view(store) for project in ([own] if own else ["", *sorted(store.scope.apart)])]
    moves = [[move for move in log.backwards(loop) if version in {c.version for c in move.changes}][::-1] for loop in loops]
    if outcome is None and not any(moves):
        raise UnknownVersion(
            f"version {version}: no cycle of {store.uri(cycles.PREFIX)} made it, and no move of {store.uri(log.PREFIX)} names "
            "it. `tabloop history` lists the moves"
        )
    if outcome:
        yield from _cycle(store, outcome)
        yield from _experiment(store, outcome)
    else:
        yield "cycle", ["none: it is a base, or a person registered it"]
    for loop, named in zip(loops, moves, strict=True):
        if named or loop is loops[0]:
            yield from _moves(loop, version, named, "" if loop is loops[0] else f" of project {loop.scope.project}")


def _moves(loop: ObjectStore, version: str, moves: Sequence[Move], of: str) -> Iterator[Section]:
    """Yield a version's moves in a loop, which the titles name, its comparisons there and its state."""
    yield f"moves{of}", [line(move) for move in moves] or ["none in the log"]
    if beside := list(_beside(loop, version, moves)):
        yield f"anchor{of}", beside
    if changed := [(change, move) for move in moves for change in move.changes if change.version == version]:
        change, move = changed[-1]
        yield f"state{of}", [f"{change.after.replace('_', ' ')}, since {when(move.time)}"]


def _outcome(store: ObjectStore, version: str) -> CycleOutcome | None:
    """Return the outcome of the cycle that made a version."""
    index = cycles.every(store)
    for cycle in reversed([cycle for cycle, objects in index.items() if cycles.OUTCOME in objects]):
        outcome = CycleOutcome.model_validate(store.get_json(cycles.key(cycle, cycles.OUTCOME)))
        if outcome.version == version:
            return outcome
    return None


def _cycle(store: ObjectStore, outcome: CycleOutcome) -> Iterator[Section]:
    manifest = cycles.manifest_of(store, outcome.cycle)
    yield (
        "cycle",
        [
            f"{manifest.cycle}, sealed {when(manifest.created)}",
            f"trained from version {manifest.parent} to beat version {manifest.champion}",
            f"code {manifest.code or 'unknown'}; Prefect's run {manifest.run or 'unknown'}",
            f"{outcome.result}: {outcome.reason}",
        ],
    )
    yield "data", _data(store, manifest)
    yield "reward", _reward(store, manifest)
    yield "training", _training(object_of(store, manifest.cycle, "training.json"))
    result = object_of(store, manifest.cycle, "evaluation.json")
    yield "evaluation", [f"{'passed' if result['passed'] else 'refused'}: {result['reason']}"] if result else ["no record"]


def _data(store: ObjectStore, manifest: Manifest) -> list[str]:
    buckets = ", ".join(f"{count} {bucket}" for bucket, count in manifest.buckets.items() if count)
    read = f"{when(manifest.since)} to {when(manifest.until)}{figures.sampled(manifest.share)}"
    requests = f"{manifest.requests} requests from {read}: {buckets}"
    code = [f"own code of {each.name}: {each.places} positions in {each.files} files" for each in manifest.learned]
    return [
        f"data set {cycles.dataset_id(store, manifest.cycle)}",
        *(code or [requests]),
        f"{manifest.samples.rows} samples in {store.uri(manifest.samples.key)}",
    ]


def _reward(store: ObjectStore, manifest: Manifest) -> list[str]:
    chosen: dict[str, Any] = {}
    with suppress(KeyError):
        chosen = cycles.sealed_settings(store, manifest)["reward"]
    samples, reward = sum(r.samples for r in manifest.returns), sum(r.reward for r in manifest.returns)
    mean = [f"mean reward {reward / samples:+.4f} over {samples} samples"] if samples else []
    return [", ".join(f"{name} {value}" for name, value in chosen.items()), *mean, *manifest.notes]


def _training(metrics: dict[str, Any]) -> list[str]:
    if not metrics:
        return ["no record"]
    known = {name: metrics.get(name) for name in ("samples", "tokens", "mean_reward", "entropy")}
    figures = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
    return [f"{len(metrics.get('steps', ()))} steps: {figures}", *metrics.get("notes", ())]


def _experiment(store: ObjectStore, outcome: CycleOutcome) -> Iterator[Section]:
    """Yield the test, each of its stages that the gate has looked at, and the verdict."""
    if not outcome.experiment:
        yield "experiment", ["none: " + outcome.reason]
        return
    record = ExperimentRecord.model_validate(store.get_json(f"experiments/{outcome.experiment}.json"))
    share = f"{record.share:.0%} of {divided(record.plan)}"
    opened = f"{record.id}: against version {record.champion}, {share}, since {when(record.started)}"
    yield "experiment", [opened]
    last = _last_looks(store, record.id)
    yield from ((name, [look_line(look).strip()]) for name, look in last.items() if name != "watch")
    decision = cycles.decision_of(store, outcome.experiment)
    yield "verdict", _decision(decision) if decision else ["no verdict yet"]
    if watched := last.get("watch"):
        yield "watch", [look_line(watched).strip()]


def _beside(store: ObjectStore, version: str, moves: Sequence[Move]) -> Iterator[str]:
    """Yield the comparisons with this version as the anchor, and the last look at it beside another one while it was champion."""
    left = [m.time for m in moves for c in m.changes if c.version == version and c.before == "champion" != c.after]
    for record in anchors(store):
        if record.champion == version:
            yield anchor_line(record).strip()
        until = (_look_until(store, record.id, last) for last in (*left, math.inf))
        for look in {found.number: found for found in until if found}.values():
            if look.verdict.reason.startswith(f"version {version} beside the anchor"):
                yield look_line(look).strip()


def _look_until(store: ObjectStore, experiment: str, time: float) -> Look | None:
    """Return the last look at an experiment that is not younger than a time; it is found by halves."""
    numbers = range(1, looks_log.newest_number(store, experiment) + 1)
    number = bisect_left(numbers, True, key=lambda number: looks_log.read(store, experiment, number).time > time)
    return looks_log.read(store, experiment, number) if number else None


def _last_looks(store: ObjectStore, experiment: str) -> dict[StageName, Look]:
    """Return the last look of each stage of an experiment, in the order of the stages. A stage's end is found by halves."""
    found: dict[StageName, Look] = {}
    newest = looks_log.newest_number(store, experiment)
    last = 0
    while last < newest:
        stage = looks_log.read(store, experiment, last + 1).stage

        def is_over(number: int, stage: StageName = stage) -> bool:
            return looks_log.read(store, experiment, number).stage != stage

        last += bisect_left(range(last + 1, newest + 1), True, key=is_over)
        found[stage] = looks_log.read(store, experiment, last)
    return found


def _decision(decision: Decision) -> list[str]:
    verdict, test = decision.verdict, decision.experiment
    sampled = figures.sampled(test.plan.sample) if test.plan else ""
    said = f"{verdict.verdict}, by {decision.by}, {when(decision.decided)}{sampled}: {verdict.reason}"
    return [said, *(row.line() for row in figures.arm_rows(verdict, test.champion, test.challenger))]
