"""Simulated developers: users with secret tastes who type through real code and speak Continue's protocol.

`await run(settings, code)` lets them type; `await measure(settings, code, pins, visits)` compares versions in pairs.
"""

from evals.developers.draws import Quirks
from evals.developers.live_run import RunSettings, run
from evals.developers.paired_run import Pair, PairedRun, measure
from evals.developers.schedule import ExpectedOutcome, Pause, Schedule
from evals.developers.sources import code_from
from evals.developers.tally import Counts, Example, Tally
from evals.developers.transport import Address, simulation_token, stack_address
from evals.developers.visit import Decision

__all__ = [
    "Address",
    "Counts",
    "Decision",
    "Example",
    "ExpectedOutcome",
    "Pair",
    "PairedRun",
    "Pause",
    "Quirks",
    "RunSettings",
    "Schedule",
    "Tally",
    "code_from",
    "measure",
    "run",
    "simulation_token",
    "stack_address",
]
