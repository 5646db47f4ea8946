"""The newest run of a flow of the loop, by which people see whether the loop goes on."""

from typing import Literal

from pydantic import Field

from infra.records.base import Record

LoopFlow = Literal["experiment", "cycle"]
"""experiment: the controller of A/B tests, which `tabloop status` calls the watch."""


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
