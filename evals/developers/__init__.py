"""Simulated developers: users with secret tastes who write real code and speak Continue's protocol.

`await run(settings, code)` lets them write; `await measure(settings, code, pins, visits, ground=...)` compares versions in pairs;
`Schedule` gives both sequences of pauses without a server.
"""

from evals.developers.draws import KINDS, DeveloperKind, Quirks
from evals.developers.grounds import GROUNDS, Ground, code_from
from evals.developers.live_session import Decision
from evals.developers.pause import Developer, ExpectedOutcome, Pause, SettledTruth
from evals.developers.people import People
from evals.developers.protocol import Pin
from evals.developers.runs import Pair, PairedRun, RunSettings, measure, run
from evals.developers.schedule import Schedule
from evals.developers.tally import Counts, Example, Tally
from evals.developers.transport import Address, simulation_token, stack_address

__all__ = ["Decision", "Developer", "ExpectedOutcome", "Ground", "Pause", "People", "Quirks", "Schedule", "SettledTruth"]
__all__ += ["Address", "Counts", "Example", "Pair", "PairedRun", "Pin", "RunSettings", "Tally"]
__all__ += ["GROUNDS", "KINDS", "DeveloperKind", "code_from", "measure", "run", "simulation_token", "stack_address"]
