"""Ask a person in Prefect before a move: the run is suspended until its form is filled in."""

from dataclasses import dataclass

from prefect import suspend_flow_run
from prefect.input import RunInput
from pydantic import Field

from infra.records import MoveRequest
from tasks.experiments.moves.manual import Plan


class Approval(RunInput):
    """The form that a person fills in."""

    approved: bool
    """Whether the move may go on."""
    version: str
    """The version that is approved."""
    by: str = Field(min_length=1)
    """Name of the person."""


@dataclass(frozen=True)
class Consent:
    """Whether a move may go on."""

    given: bool
    request: MoveRequest
    """The request with its version, which is fixed while the run waits, and with the names of who asked and who approved."""


def consent(planned: Plan, request: MoveRequest, *, ask: bool) -> Consent:
    """Return the consent to a move; with `ask`, suspend the run until a person has answered.

    The run's process ends meanwhile. After the answer the flow starts again, and this call returns at once.

    Raises:
        RuntimeError: the flow does not run from a deployment, so nobody could start it again.
    """
    if not ask:
        return Consent(True, request.model_copy(update={"version": planned.version}))
    question = f"{planned.kind.replace('_', ' ').capitalize()}: {planned.summary()}. The run's parameters say who asks, and why."
    form = Approval.with_initial_data(description=question, approved=True, version=planned.version)
    answer = suspend_flow_run(wait_for_input=form)
    by = f"{request.by}, {'approved' if answer.approved else 'declined'} by {answer.by}"
    return Consent(answer.approved, request.model_copy(update={"version": answer.version, "by": by, "source": "approval"}))
