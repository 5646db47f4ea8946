"""The controller: it records moves made by hand, sees to users who asked to be forgotten, leads the running A/B test through its
stages to a verdict, moves the versions, and rolls a promoted version back that is worse, alone or with those since the anchor."""

from prefect import flow
from prefect.states import Completed, State

from infra.records import ExperimentRecord, StageName
from tasks.experiments.controller.look import Found
from tasks.steps import context as contexts
from tasks.steps import erasures
from tasks.steps import experiment as steps
from tasks.steps.context import Context
from tasks.steps.naming import advised
from tasks.steps.noting import noted

GOES_ON: dict[StageName, str] = {
    "shadow": "Shadow",
    "ramp": "Ramp",
    "test": "Undecided",
    "paused": "Paused",
    "watch": "Watching",
    "anchor": "BesideAnchor",
}
"""Name of the run's state while a stage goes on."""
ENDED = {"reject": "Rejected", "breach": "RolledBack", "broken": "Broken"}

WHAT_TO_DO = (
    "read the log of the red task on this page; `tabloop status` shows a part that is down. The next run, in 20 seconds, looks "
    "again; a decision that was written is carried out then. `tabloop history` lists what has moved."
)


@flow(name="experiment", flow_run_name="experiment", persist_result=False)
@advised(WHAT_TO_DO)
@noted("experiment")
def experiment(project: str = "") -> State:
    """Look once: wait, enter the next stage, promote, reject, roll back, or end a broken test.

    Args:
        project: the project whose test is looked at; empty: that of each project with a champion of its own, then the common
            one. A loop that fails fails alone.
    """
    context = contexts.load(project)
    for name in context.projects:
        experiment(project=name, return_state=True)
    steps.follow(context)
    steps.requested(context)
    if not project:
        erasures.see_to_erasures(context)
    steps.follow_anchor(context)
    running = steps.running_experiment(context)
    if running is None:
        return Completed(name="NoExperiment", message="no experiment runs")
    found = steps.look(context, running)
    if found.decision:
        decision = steps.conclude(context, found.decision)
        promoted = "Promoted" if running.stage.name not in ("watch", "anchor") else "RolledBack"
        return Completed(name=ENDED.get(decision.verdict.verdict, promoted), message=decision.verdict.reason)
    if found.stage and steps.advance(context, running, found.stage):
        return Completed(name="Advanced", message=f"{found.stage.name} at {found.stage.share:.0%}: {found.verdict.reason}")
    return waiting(context, running, found)


def waiting(context: Context, running: ExperimentRecord, found: Found) -> State:
    """Return the state of a run whose test, or probation, goes on."""
    if running.stage.name == "watch" and steps.settle(context, running):
        return Completed(name="WatchOver", message=f"version {running.challenger} stays champion: {found.verdict.reason}")
    if running.stage.name != "anchor" and (still := steps.stuck(context, running)):
        return Completed(name="Stuck", message=f"{still}: {found.verdict.reason}")
    return Completed(name=GOES_ON[running.stage.name], message=found.verdict.reason)


if __name__ == "__main__":
    experiment()
