"""Promote by hand: the challenger, or the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import promote as steps


@flow(name="promote", persist_result=False)
def promote(version: int | str = "", by: str = "operator", reason: str = "") -> State:
    """Make a version the champion; the running experiment ends. Without a version, the challenger."""
    decision = steps.promote(settings_.load(), str(version), by, reason)  # `--param version=3` is a number, as Prefect reads it
    return Completed(name="Promoted", message=f"version {decision.experiment.challenger}, was {decision.experiment.champion}")


if __name__ == "__main__":
    promote()
