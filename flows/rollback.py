"""Roll back by hand: to the previous champion, or to the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks import steps


@flow(name="rollback", persist_result=False)
def rollback(version: str = "", by: str = "operator", reason: str = "") -> State:
    """Make an earlier version the champion again; the running experiment ends."""
    decision = steps.rollback(settings_.load(), version, by, reason)
    return Completed(name="RolledBack", message=f"version {decision.experiment.challenger}, was {decision.experiment.champion}")


if __name__ == "__main__":
    rollback()
