"""A cycle: collect, validate, reward, train, evaluate, register, open the experiment.

python -m flows.cycle runs one by hand, against the servers that the settings name.
"""

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed, State

from infra import settings as settings_
from infra.records import Manifest
from infra.settings import Settings
from tasks import steps
from tasks.cycles import Outcome
from tasks.train import Refused


@flow(name="cycle", persist_result=False)
def cycle() -> State | Outcome:
    """Turn the champion's window of labels into a challenger, or complete the cycle that was killed."""
    settings = settings_.load()
    situation = steps.look(settings)
    if situation.unfinished:
        found = steps.resume(settings, situation.unfinished, flow_run.id or "by hand")
        return complete(settings, found) if isinstance(found, Manifest) else found
    if situation.running:
        return Completed(name="ExperimentRunning", message=f"{situation.running.id} has no verdict yet")
    collected = steps.collect(settings)
    if (samples := collected.accounts.samples.height) < settings.collect.min_samples:
        return Completed(
            name="TooFewSamples", message=f"{samples} samples, collect.min_samples asks for {settings.collect.min_samples}"
        )
    validated = steps.validate(settings, collected)
    manifest = steps.reward(settings, validated)
    return complete(settings, manifest)


def complete(settings: Settings, manifest: Manifest) -> Outcome:
    """From the manifest to the challenger: every run of it ends in the same candidate."""
    trained = steps.train(settings, manifest)
    if isinstance(trained, Refused):
        return steps.refuse(settings, manifest, trained)
    evaluation = steps.evaluate(settings, manifest, trained)
    if evaluation.passed:
        registered = steps.register(settings, manifest, trained, evaluation)
        outcome = steps.open_experiment(settings, manifest, registered)
    else:
        outcome = steps.refuse(settings, manifest, (trained, evaluation))
    steps.show(manifest, trained, evaluation, outcome)
    return outcome


if __name__ == "__main__":
    cycle()
