"""The values of the status page, from the last answers of registry and store and from this replica's own requests."""

from typing import Any

from infra.pages.experiment_view import metric_rows, progress, sequences
from infra.records import Decision, ExperimentRecord
from serving.metrics import Metrics
from serving.status import live_charts
from serving.status.data import MAX_CYCLES, Links, StatusData

ALL_PROJECTS = ""


def page_values(
    status: dict[str, Any],
    data: StatusData,
    running: ExperimentRecord | None,
    metrics: Metrics,
    links: Links,
    now: float,
    project: str,
) -> dict[str, Any]:
    """Return the values of the page's template.

    `status` is what GET /admin/status answers; `now` in Unix seconds. With a project, metrics by project are those of its
    requests.
    """
    # The analysis of an earlier test says nothing about the running one.
    analysis = data.analysis if data.analysis and (running is None or data.analysis.experiment.id == running.id) else None
    probation = None
    if analysis and running is None and (decision := decision_of(data, analysis.experiment.id)):
        # Looks of the probation follow the verdict on the test.
        probation = analysis if analysis.decided > decision.decided else None
        analysis = decision
    errors = {"object store": status["store_error"], **data.problems}
    served = {served.project for cycle in data.cycles for served in cycle.manifest.served}
    return {
        **status,
        "problems": [*status["problems"].items(), *((part, problem) for part, problem in errors.items() if problem)],
        "running": running is not None,
        "analysis": analysis,
        "probation": probation,
        "asked": data.asked,
        "now": now,
        **_experiment(data, analysis, now),
        "recent": metrics.recent(now, project),
        "feedback_counts": sorted(metrics.feedback_counts.items()),
        "versions": data.versions,
        "cycles": data.cycles[:MAX_CYCLES],
        "moves": data.moves,
        "previous": previous(data),
        "runs": {version.tags.get("cycle"): version.tags.get("run") for version in data.versions},
        "links": links,
        "project": project,
        "projects": sorted(({project} | served | metrics.recent_projects(now)) - {ALL_PROJECTS}),
        "acceptance": live_charts.acceptance(data.cycles, project),
        "latency": live_charts.latency(metrics.latency(now, project)),
        "timeline": live_charts.timeline(data.cycles, running, now),
    }


def decision_of(data: StatusData, experiment: str) -> Decision | None:
    """Return the decision that ended an experiment of one of the newest cycles."""
    decisions = (cycle.decision for cycle in data.cycles if cycle.decision)
    return next((decision for decision in decisions if decision.experiment.id == experiment), None)


def previous(data: StatusData) -> str:
    """Return the champion that was retired last and can be served again; empty if there is none."""
    kept = {
        version.version
        for version in data.versions
        if version.tags.get("state") == "retired" and not version.tags.get("checkpoint_removed")
    }
    retired = (change.version for move in data.moves for change in move.changes if change.after == "retired")
    return next((version for version in retired if version in kept), "")


def _experiment(data: StatusData, analysis: Decision | None, now: float) -> dict[str, Any]:
    """Return the values of the looks at the shown experiment."""
    watched = data.watched
    if watched and analysis and watched.experiment.id != analysis.experiment.id:
        watched = None
    experiment = watched.experiment if watched else analysis.experiment if analysis else None
    stages = experiment.stages if experiment else ()
    drawn = sequences(watched.looks, experiment.plan) if watched and experiment and experiment.plan else []
    return {
        "share": experiment.stage_at(now).share if experiment else 0.0,
        "stages": stages,
        "planned": experiment.plan.planned if experiment and experiment.plan else "",
        "progress": progress(watched.experiment, watched.last) if watched else None,
        "charts": drawn,
        "metrics": metric_rows(analysis.verdict, experiment.plan) if analysis and experiment else [],
    }
