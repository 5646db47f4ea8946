"""A cycle: collect, validate, estimate, reward, train, evaluate, register, open the experiment.

`python -m flows.cycle` runs one by hand, against the servers that the settings name.
"""

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed, State

from infra import settings as settings_
from infra.records import CycleOutcome, Manifest
from infra.settings import Settings
from tasks.labels.accounting import Waiting
from tasks.steps import cycle as steps
from tasks.steps.naming import advised
from tasks.trainer.run import UpdateRefused

WHAT_TO_DO = (
    "read the log of the red task on this page; `make status` shows a part that is down. The next run, within a minute, resumes "
    "a sealed cycle from the same samples, three times at most, and then abandons it. See infra/docs/operate/cycle-fails.md."
)


@flow(name="cycle", flow_run_name="cycle", persist_result=False)
@advised(WHAT_TO_DO)
def cycle() -> State | CycleOutcome:
    """Turn the champion's window of labels into a challenger, or complete the cycle that was killed."""
    settings = settings_.load()
    state = steps.inspect(settings)
    if state.unfinished:
        resumed = steps.resume(settings, state.unfinished, flow_run.id or "by hand")
        return complete(settings, resumed) if isinstance(resumed, Manifest) else resumed
    if state.running:
        return Completed(name="ExperimentRunning", message=f"{state.running.id} has no verdict yet")
    collected = steps.collect(settings)
    if waiting := collected.accounting.waiting:
        return Completed(name=waiting.state, message=waiting.reason)
    validated = steps.validate(settings, collected)
    if waiting := validated.collected.accounting.waiting:
        return Completed(name=waiting.state, message=waiting.reason)
    estimate = steps.estimate(settings, validated)
    sealed = steps.reward(settings, validated, estimate)
    if isinstance(sealed, Waiting):
        return Completed(name=sealed.state, message=sealed.reason)
    return complete(settings, sealed)


def complete(settings: Settings, manifest: Manifest) -> State | CycleOutcome:
    """Train and test the candidate of a sealed cycle: every run ends in the same candidate."""
    candidate = steps.train(settings, manifest)
    if isinstance(candidate, UpdateRefused):
        return steps.refuse(settings, manifest, candidate)
    evaluation = steps.evaluate(settings, manifest, candidate)
    if isinstance(evaluation, Waiting):
        return Completed(name=evaluation.state, message=evaluation.reason)
    registered = steps.register(settings, manifest, candidate, evaluation)
    if evaluation.passed:
        outcome = steps.open_experiment(settings, manifest, registered)
    else:
        outcome = steps.fail(settings, manifest, registered, evaluation)
    steps.show(settings, manifest, candidate, evaluation, outcome)
    return outcome


if __name__ == "__main__":
    cycle()
