"""Runs of the flow `forget` for developers who asked on their own page to be forgotten (infra/storage/choices.py)."""

from functools import partial

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.logging import get_run_logger

from infra.records import ErasureRequest
from infra.storage import choices
from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, attempt_to_show, step

DEPLOYMENT, DONE = "forget/forget", "Forgotten"
RETRY_SECONDS = 600.0
"""Time after which a run that failed, or that left the rows of a cycle under way, is followed by another one."""


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
    state = run.state
    if state and state.is_completed() and state.name == DONE:
        removed = (state.message or "").partition("; ")[0]
        choices.end(context.store, request.model_copy(update={"noted": now, "message": removed}))
        get_run_logger().info("a user is forgotten, as they asked: %s", removed)
        return
    choices.note(context.store, request.model_copy(update={"noted": now, "message": _said(run)}))


def _run(request: ErasureRequest, attempt: int) -> FlowRun:
    """Return the run of an attempt. Its key makes it one run, however often the controller asks."""
    reason = "asked for on their own page"
    parameters = {"user": request.user, "by": "the user", "reason": reason, "dry_run": False}
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(DEPLOYMENT)
        key = f"forget {request.user} {request.time:.6f} {attempt}"
        return client.create_flow_run_from_deployment(deployment.id, parameters=parameters, idempotency_key=key)


def _said(run: FlowRun) -> str:
    """Return how a run stands, in words without a version."""
    state = run.state
    if state is None or not state.is_final():
        return "the removal is queued" if state is None or not state.is_running() else "the removal runs"
    again = f"it is tried again within {RETRY_SECONDS / 60:.0f} minutes"
    if state.is_completed():
        return f"removed but for the rows that a cycle under way holds; {again}"
    return f"the removal ended as {state.name}, which an administrator sees in Prefect; {again}"
