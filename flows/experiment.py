"""The experiment watch: it records what was moved by hand, reaches a verdict on the running A/B test, and moves the versions."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from infra.records import Verdict
from tasks.steps import experiment as steps


@flow(name="experiment", persist_result=False)
def experiment() -> State:
    """Promote, reject, end a broken test, or wait."""
    settings = settings_.load()
    steps.follow(settings)
    running = steps.running_experiment(settings)
    if running is None:
        return Completed(name="NoExperiment", message="no experiment runs")
    verdict = steps.verdict(settings, running)
    if isinstance(verdict, Verdict):
        return Completed(name="Undecided", message=verdict.reason)
    decision = steps.conclude(settings, verdict)
    names = {"promote": "Promoted", "reject": "Rejected", "breach": "Breach", "broken": "Broken"}
    return Completed(name=names[decision.verdict.verdict], message=decision.verdict.reason)


if __name__ == "__main__":
    experiment()
