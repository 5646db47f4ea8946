"""Promote by hand: the challenger, or the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import promote as steps
from tasks.steps.approval import consent
from tasks.steps.naming import advised

WHAT_TO_DO = (
    "the message above says what was expected; `python -m tasks.experiments history` lists what has moved. A move whose run was "
    "killed is completed by the next run of the flow `experiment`; one that is refused changes nothing."
)


@flow(name="promote", flow_run_name="promote by {by}", persist_result=False)
@advised(WHAT_TO_DO)
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
