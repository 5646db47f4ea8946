"""The scores of a model with the results of a benchmark's tests: pass@1 as a metric of a place, with interval and difference."""

from collections.abc import Mapping
from dataclasses import replace

from infra.records import HeldOutPlace
from tasks.evaluation.sandbox.programs import pass_at_1
from tasks.evaluation.sandbox.run import SandboxRefused
from tasks.evaluation.scores import Scores
from tasks.evaluation.scoring import ScoredModels

WORKERS = 2
"""Tests that run at a time, each in a sandbox of its own."""
Programs = Mapping[tuple[str, str], HeldOutPlace]
"""Places that have tests, by set and id."""


def with_tests(scored: ScoredModels, programs: Programs) -> ScoredModels:
    """Return the scores of all models with the results of the tests, or with the reason why the tests were not run."""
    if not programs:
        return scored
    try:
        scores = {name: with_passed(one, programs) for name, one in scored.scores.items()}
    except SandboxRefused as error:
        return replace(scored, untested=(f"passed: {len(programs)} places have tests. {error}",))
    return replace(scored, scores=scores)


def with_passed(scores: Scores, programs: Programs) -> Scores:
    """Return scores with `passed` of each place that has tests and whose language can be run here.

    Raises:
        SandboxRefused: this machine does not allow sandboxes.
    """
    numbers = [number for number, row in enumerate(scores.by_position) if row.place in programs]
    rows = [scores.by_position[number] for number in numbers]
    results = pass_at_1([programs[row.place] for row in rows], [row.completion for row in rows], workers=WORKERS)
    changed = list(scores.by_position)
    for number, row, result in zip(numbers, rows, results, strict=True):
        assert row.measured is not None, "score_position measures every completion"
        passed = None if result == "not_run" else float(result == "passed")
        changed[number] = replace(row, measured=replace(row.measured, passed=passed))
    return replace(scores, by_position=tuple(changed))
