"""A cycle: collect, validate, reward, hold out, seal, train, evaluate, register, open the experiment. Or, of own code: read it,
hold out, seal, and then the same.

`python -m flows.cycle` runs one by hand, against the servers that the settings name.
"""

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed, State

from infra.records import CycleOutcome, Manifest, OwnCode
from tasks.labels.accounting import Waiting
from tasks.steps import context as contexts
from tasks.steps.collect import LoopState, collect, inspect
from tasks.steps.context import Context
from tasks.steps.evaluate import evaluate
from tasks.steps.hold_out import hold_out
from tasks.steps.naming import advised
from tasks.steps.noting import noted
from tasks.steps.own_code import busy, hold_out_code, name_of_end, read_code, seal_code
from tasks.steps.register import fail, open_experiment, register, show
from tasks.steps.reward import fit_keep_estimate, reward
from tasks.steps.seal import abandon_left, attempted, resume, seal
from tasks.steps.train import refuse, train
from tasks.steps.validate import validate
from tasks.trainer.run import UpdateRefused

WHAT_TO_DO = (
    "read the log of the red task here; `tabloop status` shows a part that is down. The next run, within a minute, resumes "
    "a sealed cycle from the same samples; after three that fail, it is abandoned. See infra/docs/operate/cycle-fails.md."
)


@flow(name="cycle", flow_run_name="cycle", persist_result=False)
@advised(WHAT_TO_DO)
@noted("cycle")
def cycle(own_code: OwnCode | None = None, project: str = "") -> State | CycleOutcome:
    """Turn the champion's window of labels into a challenger, or complete the cycle that was killed.

    Args:
        own_code: repositories to learn from in place of the labels (`tabloop learn`).
        project: the project whose loop runs; empty: that of each project with a champion of its own, then the common one. One
            update runs at a time, and a loop that fails fails alone.
    """
    context = contexts.load(project)
    for name in context.projects if not own_code else ():
        cycle(project=name, return_state=True)
    state = inspect(context)
    if state.left:
        abandon_left(context, state.left)
    if own_code:
        return learn(context, state, own_code)
    if state.unfinished:
        resumed = resume(context, state.unfinished, flow_run.id or "by hand")
        return complete(context, resumed) if isinstance(resumed, Manifest) else resumed
    if state.running:
        return Completed(name="ExperimentRunning", message=f"{state.running.id} has no verdict yet")
    collected = collect(context)
    if waiting := collected.accounting.waiting:
        return Completed(name=waiting.state, message=waiting.reason)
    validated = validate(context, collected, state.next)
    if waiting := validated.collected.accounting.waiting:
        return Completed(name=waiting.state, message=waiting.reason)
    fitted = fit_keep_estimate(context, validated)
    rewarded = reward(context, validated)
    if isinstance(rewarded, Waiting):
        return Completed(name=rewarded.state, message=rewarded.reason)
    held_out = hold_out(context, validated, rewarded)
    manifest = seal(context, validated, rewarded, held_out, fitted)
    return complete(context, manifest)


def learn(context: Context, state: LoopState, own_code: OwnCode) -> State:
    """Turn own code into a challenger, unless the loop is busy."""
    if waiting := busy(context, state):
        return Completed(name=waiting.state, message=waiting.reason)
    learned = read_code(context, own_code, state.next)
    if isinstance(learned, Waiting):
        return Completed(name=learned.state, message=learned.reason)
    held_out = hold_out_code(context, learned)
    manifest = seal_code(context, learned, held_out)
    ended = complete(context, manifest)
    return Completed(name=name_of_end(ended), message=ended.reason) if isinstance(ended, CycleOutcome) else ended


@attempted
def complete(context: Context, manifest: Manifest) -> State | CycleOutcome:
    """Train and test the candidate of a sealed cycle: every run ends in the same candidate."""
    candidate = train(context, manifest)
    if isinstance(candidate, UpdateRefused):
        return refuse(context, manifest, candidate)
    evaluation = evaluate(context, manifest, candidate)
    if isinstance(evaluation, Waiting):
        return Completed(name=evaluation.state, message=evaluation.reason)
    registered = register(context, manifest, candidate, evaluation)
    if not evaluation.passed:
        outcome = fail(context, manifest, registered, evaluation)
    elif isinstance(opened := open_experiment(context, manifest, registered), Waiting):
        return Completed(name=opened.state, message=opened.reason)
    else:
        outcome = opened
    show(context, manifest, candidate, evaluation, outcome)
    return outcome


if __name__ == "__main__":
    cycle()
