"""Runs of the flow `forget` for developers who asked on their own page to be forgotten (infra/storage/choices.py)."""

from functools import partial

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.logging import get_run_logger

from infra.records import ErasureRequest
from infra.storage import choices
from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, attempt_to_show, step

DEPLOYMENT, DONE = "forget/forget", "Forgotten"
RETRY_SECONDS = 600.0
"""Time after which a run that failed, or that left the rows of a cycle under way, is followed by another one."""
LATEST_ATTEMPTS = 144
"""Attempts, of a day, of which one that has not ended is waited for: a run whose machine is lost never ends."""


@step("requests to be forgotten", retries=IO_RETRIES)
def see_to_erasures(context: Context) -> list[ErasureRequest]:
    """Start the removals that wait, and note how they stand; return the requests. A failure is left to the next run."""
    waiting = choices.waiting(context.store)
    for request in waiting:
        attempt_to_show("forget", partial(_see_to, context, request))
    return waiting


def _see_to(context: Context, request: ErasureRequest) -> None:
    now = context.now()
    # Each replica first ships what it recorded before the request: a segment's time to be closed, and as long again.
    seconds = now - request.time - 2 * context.settings.serving.ship_seconds
    if seconds < 0:
        return
    run = _run(request, int(seconds // RETRY_SECONDS))
    if run.state and _has_removed(run):
        removed = (run.state.message or "").partition("; ")[0]
        choices.end(context.store, request.model_copy(update={"noted": now, "message": removed}))
        get_run_logger().info("a user is forgotten, as they asked: %s", removed)
        return
    choices.note(context.store, request.model_copy(update={"noted": now, "message": _said(run)}))


def _run(request: ErasureRequest, attempt: int) -> FlowRun:
    """Return the run that has removed everything, else one that has not ended, else the run of this attempt.

    The key of an attempt makes it one run, however often the controller asks.
    """
    reason = "asked for on their own page"
    parameters = {"user": request.user, "by": "the user", "reason": reason, "dry_run": False}
    latest = range(max(0, attempt - LATEST_ATTEMPTS + 1), attempt + 1)
    keys = [f"forget {request.user} {request.time:.6f} {number}" for number in latest]
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys)))
        for run in sorted(runs, key=_has_removed, reverse=True):
            if _has_removed(run) or not (run.state and run.state.is_final()):
                return run
        deployment = client.read_deployment_by_name(DEPLOYMENT)
        return client.create_flow_run_from_deployment(deployment.id, parameters=parameters, idempotency_key=keys[-1])


def _has_removed(run: FlowRun) -> bool:
    return bool(run.state and run.state.is_completed() and run.state.name == DONE)


def _said(run: FlowRun) -> str:
    """Return how a run stands, in words without a version."""
    state = run.state
    if state is None or not state.is_final():
        return "the removal is queued" if state is None or not state.is_running() else "the removal runs"
    again = f"it is tried again within {RETRY_SECONDS / 60:.0f} minutes"
    if state.is_completed():
        return f"removed but for the rows that a cycle under way holds; {again}"
    return f"the removal ended as {state.name}, which an administrator sees in Prefect; {again}"
