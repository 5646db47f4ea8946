"""Roll back by hand: to the newest retired champion, or to the version given."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import rollback as steps
from tasks.steps.approval import consent
from tasks.steps.naming import advised

WHAT_TO_DO = (
    "the message above says what was expected; `python -m tasks.experiments history` lists what has moved. A move whose run was "
    "killed is completed by the next run of the flow `experiment`; one that is refused changes nothing."
)


@flow(name="rollback", flow_run_name="rollback by {by}", persist_result=False)
@advised(WHAT_TO_DO)
def rollback(
    version: int | str = "", by: str = "operator", reason: str = "", dry_run: bool = False, approve: bool = False
) -> State:
    """Make an earlier champion the champion again; the running experiment ends. A paused one alone ends, with a rejection.

    Args:
        version: the version; empty: the champion that was retired last.
        by: who asks.
        reason: why.
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
    decision = steps.rollback(settings, agreed.version, agreed.by, reason)
    if decision.verdict.verdict == "reject":
        return Completed(name="Rejected", message=f"version {decision.experiment.challenger}: {decision.verdict.reason}")
    return Completed(name="RolledBack", message=f"version {decision.experiment.challenger}, was {decision.experiment.champion}")


if __name__ == "__main__":
    rollback()
