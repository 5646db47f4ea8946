"""Promote by hand: the challenger, or the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import promote as steps
from tasks.steps.approval import consent


@flow(name="promote", persist_result=False)
def promote(
    version: int | str = "", by: str = "operator", reason: str = "", dry_run: bool = False, approve: bool = False
) -> State:
    """Make a version the champion; the running experiment ends.

    Args:
        version: the version; empty: the challenger.
        by: who asks.
        reason: why. A version that failed its test or was rolled back needs one.
        dry_run: say what would be done, and change and record nothing.
        approve: wait until a person has approved it in Prefect.
    """
    settings = settings_.load()
    planned = steps.plan(settings, str(version), reason)  # `--param version=3` is a number, as Prefect reads it
    if dry_run:
        return Completed(name="DryRun", message=planned.summary())
    agreed = consent(planned, by, ask=approve)
    if not agreed.given:
        return Completed(name="Declined", message=f"{agreed.by}: {planned.summary()}")
    decision = steps.promote(settings, agreed.version, agreed.by, reason)
    moved = f"version {decision.experiment.challenger}, was {decision.experiment.champion}"
    warning = f". Warning: {planned.warning}" if planned.warning else ""
    return Completed(name="Promoted", message=f"{moved}{warning}")


if __name__ == "__main__":
    promote()
