"""Pause a running test by hand, and resume it: nobody changes arms, and until then only a breach ends it. Its clock goes on."""

from infra.records import ExperimentRecord, MoveRequest, Stage
from infra.registry.client import Registry
from infra.storage.store import ObjectStore
from tasks.experiments.moves import release
from tasks.experiments.moves.manual import MovedMeanwhile, NothingToDo
from tasks.experiments.stages import shares as stages

PAUSED_IN = ("ramp", "test")
"""The stages that can be paused: in the shadow nobody is served, and a version that is watched is champion."""


def pause(store: ObjectStore, registry: Registry, request: MoveRequest) -> None:
    """Pause the test of a version; do nothing where it is paused.

    Raises:
        NothingToDo: no test of it runs, or its stage cannot be paused.
        MovedMeanwhile: the test has ended or entered another stage meanwhile.
    """
    running = _test_of(registry, request.version)
    if running.stage.name == "paused":
        return
    if running.stage.name not in PAUSED_IN:
        raise NothingToDo(
            f"pause: the test of version {request.version} is in its stage {running.stage.name}, "
            f"expected {' or '.join(PAUSED_IN)}: nobody is served by it yet"
        )
    _enter(store, registry, running, stages.pause(running, request.time, request.reason, request.by), request.time)


def resume(store: ObjectStore, registry: Registry, request: MoveRequest) -> None:
    """Let the test of a version go on that a person has paused; do nothing where it goes on.

    Raises:
        NothingToDo: no test of it runs, or the gate has paused it.
        MovedMeanwhile: the test has ended or entered another stage meanwhile.
    """
    running = _test_of(registry, request.version)
    if running.stage.name != "paused":
        return
    if not running.stage.by:
        raise NothingToDo(
            f"resume: the test of version {request.version} is over, without proof either way: `tabloop promote` or "
            "`tabloop rollback`"
        )
    _enter(store, registry, running, stages.resume(running, request.time, request.reason, request.by), request.time)


def _test_of(registry: Registry, version: str) -> ExperimentRecord:
    running = registry.aliases().experiment
    if running is None or running.challenger != version:
        found = f"the test of version {running.challenger} does" if running else "none does"
        raise NothingToDo(f"no test of version {version} runs, {found}; look at the status page and ask again")
    return running


def _enter(store: ObjectStore, registry: Registry, running: ExperimentRecord, stage: Stage, now: float) -> None:
    if release.advance(store, registry, running, stage, now) is None:
        raise MovedMeanwhile(f"the test {running.id} has ended or moved on meanwhile; look at the status page and ask again")
