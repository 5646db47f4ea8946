"""Runs the tests of benchmarks in a sandbox: pass@1.

inside    builds a sandbox of Linux namespaces and runs one command in it
run       starts it from outside, with limits (limits.py), and returns how the command ended
interpreter  the Python that runs programs in it
programs  a completion as a program of its language, and whether its tests pass (truncation.py: SAFIM's cut)
scored    the scores of a model with the results of the tests
"""

from tasks.evaluation.sandbox.limits import Limits
from tasks.evaluation.sandbox.programs import Runs, pass_at_1, passes
from tasks.evaluation.sandbox.run import Outcome, SandboxRefused, run

__all__ = ["Limits", "Outcome", "Runs", "SandboxRefused", "pass_at_1", "passes", "run"]
