"""The progress of the running cycle in the object store, one object that is written again and again."""

from infra.records import CycleProgress
from infra.storage.loop_runs import span
from infra.storage.store import ObjectStore

KEY = "loop/progress.json"


def read(store: ObjectStore) -> CycleProgress | None:
    """Return the progress of the newest cycle's run; None before the first. Raises the store's errors."""
    return store.find(_key(store), CycleProgress)


def enter(store: ObjectStore, run: str, stage: str, now: float) -> None:
    """Write that a run enters a stage. Raises the store's errors."""
    before = read(store)
    first = CycleProgress(run=run, stage=stage, started=now, seen=now)
    store.put_json(_key(store), before.entered(run, stage, now) if before else first)


def advance(store: ObjectStore, done: float, of: float, now: float) -> None:
    """Write how much of its work the stage has done. Raises the store's errors."""
    if before := read(store):
        store.put_json(_key(store), before.advanced(done, of, now))


def await_gpus(store: ObjectStore, now: float) -> None:
    """Write that the stage waits for GPUs, until `advance` or the next stage. Raises the store's errors."""
    if before := read(store):
        store.put_json(_key(store), before.waiting(now))


def described(progress: CycleProgress, now: float) -> str:
    """Return the stage with its work and the time left: by the work that is done, else by the last run that had the stage."""
    spent, usual = now - progress.started, progress.usual.get(progress.stage, 0.0)
    work = f"{progress.stage}{f', {progress.done:.0f} of {progress.of:.0f}' if progress.of else ''}"
    if progress.awaits_gpus:
        return f"waits for GPUs for {span(now - progress.awaits_gpus)}"
    if progress.of and progress.done:
        return f"{work}, {span(spent * (progress.of / progress.done - 1))} left"
    if not usual:
        return f"{work}, for {span(spent)}"
    if spent > usual:
        return f"{work}, longer than usual: for {span(spent)}, last time {span(usual)}"
    return f"{work}, {span(usual - spent)} left by the last run"


def _key(store: ObjectStore) -> str:
    return f"{store.scope.prefix}{KEY}"
