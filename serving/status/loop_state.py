"""The state of a loop for the metrics, from what the status page reads (data.py): one truth for both."""

from infra.pages.experiment_view import progress
from infra.records import ExperimentRecord, Verdict
from infra.storage import loop_runs
from infra.storage.loop_runs import Sign
from serving.metrics.loop import LoopState, TestState
from serving.status.data import StatusData, newest_looks, shown_looks


def signs(data: StatusData, now: float, backlog: float | None = None) -> list[Sign]:
    """Return the signs of a loop with those that are the same for all; `backlog` as in loop_runs.signs."""
    found = loop_runs.signs(data.runs, now, backlog, common=data.common.runs if data.common else None)
    return [*found, loop_runs.prefect((data.common or data).runs, now)]


def own_signs(data: StatusData, now: float) -> dict[str, bool]:
    """Return whether each part of a loop is as it should be; of a project's, the parts of its own alone."""
    return {sign.name: sign.ok for sign in signs(data, now) if data.common is None or sign.name in loop_runs.OF_EACH_LOOP}


def loop_state(data: StatusData, running: ExperimentRecord | None, beside: ExperimentRecord | None, now: float) -> LoopState:
    """Return the state by the last answers of registry and store.

    Args:
        running: the running test.
        beside: the probation of the champion, or its comparison with the anchor.
        now: Unix seconds.
    """
    newest = data.cycles[0] if data.cycles else None
    watched, spools = running or beside, data.spools
    return LoopState(
        runs=data.runs,
        progress=data.progress,
        cycle=(newest.manifest, newest.outcome) if newest else None,
        test=(_test(data, running, now) if running else _beside(data, watched, now)) if watched else None,
        unread=data.problems | ({"spools": spools.error} if spools and spools.error else {}),
        certificates=dict(data.certificates),
        tokens=data.tokens,
        backup=data.backup,
        left=spools.left if spools else {},
    )


def _test(data: StatusData, running: ExperimentRecord, now: float) -> TestState:
    stage = running.stage_at(now)
    analysis, _ = shown_looks(data, running)
    looks = newest_looks(data, analysis, running)
    if not looks:
        return TestState(stage.name, stage.share)
    shown = progress(running, looks[-1])
    return TestState(
        stage=stage.name,
        share=stage.share,
        looked=max(looks[-1].time, analysis.decided if analysis else 0.0),
        ends=shown.ends if shown else None,
        requests=shown.requests if shown else None,
        planned=shown.planned if shown else None,
        differences=_differences(looks[-1].verdict),
    )


def _beside(data: StatusData, watched: ExperimentRecord, now: float) -> TestState:
    stage, analysis = watched.stage_at(now), data.analysis
    if analysis is None or analysis.experiment.id != watched.id:
        return TestState(stage.name, stage.share, ends=stage.ends or None)
    differences = _differences(analysis.verdict)
    return TestState(stage.name, stage.share, looked=analysis.decided, ends=stage.ends or None, differences=differences)


def _differences(verdict: Verdict) -> dict[str, tuple[float, float, float]]:
    return {
        result.name: (result.estimate, result.low, result.high)
        for result in verdict.metrics
        if result.estimate is not None and result.low is not None and result.high is not None
    }
