"""The step `train` as a Job of Kubernetes (`train.job`): its inputs, its states in Prefect, and its end with the cycle.

What talks to Kubernetes is imported where a Job trains: other runs are spared its seconds.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Running, State

from infra.registry import checkpoints
from infra.storage import cycle_progress
from infra.storage.store import CHECKSUMS
from tasks.steps import transaction
from tasks.steps.context import Context
from tasks.steps.step import attempt_to_show, note_awaited_gpus
from tasks.trainer.cluster import order
from tasks.trainer.run import Candidate, PlaceLost, UpdateRefused

if TYPE_CHECKING:
    from tasks.trainer.cluster.order import Order, Stored

WAITING, WAITING_STAGE, STAGE = "WaitingForGPUs", "waiting for GPUs", "train"


def stored(context: Context, version: str) -> "Stored":
    """Return the place of a version's checkpoint in the bucket."""
    return _stored(context, version, checkpoints.prefix_of(context.registry.version(version).source, context.store.bucket))


def stored_optimizer(context: Context, version: str) -> "Stored | None":
    """Return the place of the optimizer's state at a version; None where none was kept."""
    checkpoint = checkpoints.prefix_of(context.registry.version(version).source, context.store.bucket)
    prefix = checkpoints.optimizer_prefix(checkpoint)
    return _stored(context, version, prefix) if context.store.exists(f"{prefix}/{CHECKSUMS}") else None


def _stored(context: Context, version: str, prefix: str) -> "Stored":
    from tasks.trainer.cluster.order import Stored

    return Stored(version=version, prefix=prefix, sha256=context.store.directory_sha256(prefix))


def train(context: Context, wanted: "Order", say: Callable[[str], None]) -> Candidate | UpdateRefused:
    """Train the candidate of an order by the Job that the settings describe.

    A run whose pods lose their place, or whose cluster is away or refuses, does not count as one that failed: the update is not
    to blame.
    """
    from tasks.trainer.cluster import update

    assert context.settings.train.job
    flow = update.Flow(context.folder(wanted.cycle), say, waiting_state(context), cancelled)
    try:
        return update.train(context.store, wanted, context.settings.train.job, flow)
    except (PlaceLost, *update.KEEPS_JOB):
        run = flow_run.id or "by hand"
        attempt_to_show("attempt", lambda: transaction.withdraw(context.store, wanted.cycle, run))
        raise


def waiting_state(context: Context) -> Callable[[str], None]:
    """Return a function that shows in Prefect and in the cycle's progress that the run waits for GPUs, with the reason."""
    waits = False

    def take(words: str) -> None:
        nonlocal waits
        if bool(words) != waits:
            waits, stage = bool(words), WAITING_STAGE if words else STAGE
            attempt_to_show("progress", lambda: cycle_progress.enter(context.store, flow_run.id or "", stage, time.time()))
            if waits:
                note_awaited_gpus(context)
        get_run_logger().info("%s: %s", WAITING, words) if words else get_run_logger().info("the pods of the update run")
        attempt_to_show("state", lambda: _show_state(words))

    return take


def _show_state(words: str) -> None:
    if flow_run.id:
        state: State[Any] = Running(name=WAITING, message=words) if words else Running()
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(flow_run.id), state, force=True)


def cancelled() -> bool:
    """Return whether the run that is being stopped was cancelled, or runs by hand; a worker that stops leaves the Job."""
    if not flow_run.id:
        return True
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(flow_run.id)).state
    except Exception as error:
        get_run_logger().warning("state: %s; the Job stays, and the next run finds it", error)
        return False
    return bool(state and (state.is_cancelling() or state.is_cancelled()))


def discard(context: Context, cycle: str) -> None:
    """End a cycle's Jobs, for which nobody waits, and remove what they left in the bucket: those of earlier runs too, where
    `train.job` was another or is not set any more. A failure is logged, and stops nothing; the orders then stay, since they name
    the templates of Jobs that may run, and each later update tries again."""
    attempt_to_show("training Job", lambda: _end_jobs(context, cycle))


def discard_left(context: Context, cycle: str) -> None:
    """Discard the Jobs and orders that other cycles than the one to train have left."""
    for other in order.others(context.store, cycle):
        discard(context, other)


def _end_jobs(context: Context, cycle: str) -> None:
    own, errors = context.settings.train.job, list[str]()
    for file in sorted(order.templates(context.store, cycle) | ({own} if own else set())):
        from tasks.trainer.cluster import update

        try:
            update.end(context.store, cycle, file)
        except Exception as error:  # of a template that is gone, for example: the Jobs of the others end all the same
            errors.append(str(error))
    order.remove(context.store, cycle, trained_alone=bool(errors))
    if errors:
        ends = f"`kubectl delete job -l {update.labels_of(context.store, cycle)}` in their namespace ends them"
        orders = f"{context.store.uri(order.PREFIX)} --exclude '*' --include '{cycle}-*'"
        then = f"then `aws s3 rm --recursive {orders}` ends this warning"
        raise RuntimeError(f"Jobs of {cycle} may hold their GPUs: {'; '.join(errors)}. {ends}; {then}")
