"""Simulated developers: many users with secret tastes who type through real code and speak Continue's protocol.

`await run(Run(...), code)` lets them type; `await measure(Run(...), code, pins, visits)` compares versions in pairs.
"""

from evals.developers.draws import Quirks
from evals.developers.looks import Look, Outcome, Schedule
from evals.developers.running import Pair, Paired, Run, measure, run
from evals.developers.sources import code_from
from evals.developers.tally import Counts, Example, Tally
from evals.developers.transport import Address
from evals.developers.visit import Decision

__all__ = [
    "Address",
    "Counts",
    "Decision",
    "Example",
    "Look",
    "Outcome",
    "Pair",
    "Paired",
    "Quirks",
    "Run",
    "Schedule",
    "Tally",
    "code_from",
    "measure",
    "run",
]
