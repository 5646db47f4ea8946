"""Roll back by hand: to the previous champion, or to the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import rollback as steps


@flow(name="rollback", persist_result=False)
def rollback(version: int | str = "", by: str = "operator", reason: str = "") -> State:
    """Make an earlier version the champion again; the running experiment ends. Without a version, the previous champion."""
    decision = steps.rollback(settings_.load(), str(version), by, reason)  # `--param version=3` is a number, as Prefect reads it
    return Completed(name="RolledBack", message=f"version {decision.experiment.challenger}, was {decision.experiment.champion}")


if __name__ == "__main__":
    rollback()
