"""The newest run of a flow of the loop, by which people see whether the loop goes on."""

from typing import Literal

from pydantic import Field

from infra.records.base import Record

LoopFlow = Literal["experiment", "cycle", "compaction"]
"""experiment: the controller of A/B tests, which `tabloop status` calls the watch."""
FAILED = ("Failed", "Crashed")
"""States of a run that failed."""
DRY_RUN = "DryRun"
"""State of a run that changed nothing."""


class LoopRun(Record):
    """The newest run of a flow. Each run rewrites it at its begin and its end."""

    flow: LoopFlow
    """Name of the flow."""
    began: float
    """When it began."""
    ended: float = 0.0
    """When it ended; 0 while it runs, and for a run that was killed."""
    state: str = ""
    """Name of the state it ended in, such as "TooFewSamples"; empty before."""
    message: str = ""
    """Why it ended so."""
    run: str = ""
    """Id of the flow run in Prefect; empty for a run without Prefect."""
    schedules: dict[str, bool] = Field(default={})
    """Of a run of the flow `experiment`: whether each deployment's schedule was on; empty where Prefect did not say."""
    prefect_seconds: float | None = None
    """Of a run of the flow `experiment`: how long Prefect took to answer that; None where it did not."""
    well: float = 0.0
    """When the flow last ended without failing; 0: unknown."""
    failures: int = 0
    """Runs in a row that failed or were killed; a run that goes on is not among them."""

    def after(self, before: "LoopRun | None") -> "LoopRun":
        """Return the run at its begin, with what the run before it leaves: one that has not ended was killed."""
        if before is None:
            return self
        return self.model_copy(update={"well": before.well, "failures": before.failures + (not before.ended)})

    def end(self, now: float, state: str, message: str) -> "LoopRun":
        """Return the run at its end."""
        ended = {"ended": now, "state": state, "message": message}
        if state in FAILED:
            return self.model_copy(update=ended | {"failures": self.failures + 1})
        return self.model_copy(update=ended | {"failures": 0} | ({} if state == DRY_RUN else {"well": now}))
