"""The first steps of a cycle: find the state of the loop, and collect the window of labels."""

from dataclasses import dataclass
from functools import partial

from prefect.logging import get_run_logger

from infra.pages import figures
from infra.records import ExperimentRecord
from infra.records.few import Few
from infra.storage import cycles
from infra.storage import few as log
from tasks.labels import collect as collecting
from tasks.labels.accounting import RequestAccounting
from tasks.labels.collect import Collected
from tasks.steps.context import Context
from tasks.steps.joining import join_all
from tasks.steps.naming import call_run, call_waiting
from tasks.steps.step import IO_RETRIES, step


@dataclass(frozen=True)
class LoopState:
    """The state in which a cycle finds the loop."""

    running: ExperimentRecord | None
    """The experiment that keeps a new cycle from starting."""
    unfinished: str | None
    """A cycle that was sealed and has not ended."""
    left: tuple[str, ...] = ()
    """Cycles of projects whose loop was switched off before they ended."""
    next: str = ""
    """Id of the cycle that a run seals which begins now. Another run that seals one meanwhile takes the id, so that no window is
    sealed twice."""


@step("inspect", retries=IO_RETRIES)
def inspect(context: Context) -> LoopState:
    """Find the running experiment and the cycle that was killed."""
    context.store.check_conditional_puts()
    known = cycles.index(context.store)
    unfinished = cycles.unfinished(known)
    running = context.registry.aliases().experiment
    if running and not unfinished:
        call_run(f"cycle waits for {running.id}", "nothing to do")
    following = cycles.name_after(known, context.store.scope.project)
    return LoopState(running, unfinished, cycles.left(context.store), following)


@step("collect", retries=IO_RETRIES)
def collect(context: Context) -> Collected:
    """Read the events since the parent version was made, and put every request in its bucket."""
    settings = context.settings
    collected = collecting.collect(context.store, context.registry, settings, context.now(), partial(join_all, context))
    accounting = collected.accounting
    call_waiting(accounting.waiting)
    if small := small_sample(accounting, context.now()):
        get_run_logger().warning("%s", log.in_words(small))
    if few := small or accounting.few:
        log.write(context.store, few)
    get_run_logger().info(
        "training continues from version %s; %d requests, %d to train on; %d impressions match no request; %s",
        collected.parent,
        accounting.requests,
        accounting.samples.height,
        collected.orphans,
        {bucket: count for bucket, count in accounting.buckets.items() if count},
    )
    return collected


def small_sample(accounting: RequestAccounting, now: float) -> Few | None:
    """Return why the sample of a window's users holds too few samples, `now` in Unix seconds; None where it holds enough, or all
    users.

    One user with most of the requests may be outside every sample that fits, and most others then are, too.
    """
    counts, samples, asked = accounting.counts, accounting.samples.height, accounting.settings.min_samples
    if not counts.unsampled or samples >= asked:
        return None
    read = f"{counts.requests - counts.unsampled} of {counts.requests} requests{figures.sampled(counts.share)}"
    return Few(
        what="cycle",
        time=now,
        reason=f"{samples} samples of {read}, collect.min_samples asks for {asked}, and few users may make most requests",
        possible=None,
        change=f"Set collect.most_requests to {counts.requests} or more, with memory for them (`tabloop plan capacity`)",
    )
