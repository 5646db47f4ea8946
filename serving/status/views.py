"""The values of the status page, from the last answers of registry and store and from this replica's own requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.pages.experiment_view import divided, metric_rows, progress, sequences
from infra.pages.figures import arm_rows
from infra.records import Decision, ExperimentRecord, Look
from serving.metrics import Metrics
from serving.status import live_charts
from serving.status.data import MAX_CYCLES, MAX_MOVES, Links, StatusData, newest_looks, shown_looks
from serving.status.head import head


@dataclass(frozen=True)
class Choice:
    """What the page lets a reader choose."""

    own: Sequence[str]
    """Projects with a champion of their own, each with a page."""
    projects: Sequence[str]
    """Projects whose figures the page of the common loop shows apart."""
    more: int = 0
    """Number of further ones that are not listed."""


def page_values(
    status: dict[str, Any],
    data: StatusData,
    running: ExperimentRecord | None,
    metrics: Metrics,
    links: Links,
    now: float,
    project: str,
    choice: Choice,
) -> dict[str, Any]:
    """Return the values of the page's template.

    `status` is what GET /admin/status answers about the loop of `data`; `now` in Unix seconds. With a project, metrics by project
    are those of its requests.
    """
    analysis, beside = shown_looks(data, running)
    looks = newest_looks(data, analysis, running)
    if analysis and running and looks and looks[-1].time >= analysis.decided:
        analysis = analysis.model_copy(update={"verdict": looks[-1].verdict, "decided": looks[-1].time})
    errors = {"object store": status["store_error"], **data.problems}
    test = _experiment(data, analysis, running, looks, now)
    return {
        **status,
        "problems": [*status["problems"].items(), *((part, problem) for part, problem in errors.items() if problem)],
        "head_lines": head(status, data, analysis, test["progress"] if running else None, now),
        "running": running is not None,
        "analysis": analysis,
        "beside": beside,
        "asked": data.asked,
        "now": now,
        **test,
        "recent": metrics.recent(now, project),
        "clients": metrics.last_hour(now),
        "versions": data.versions,
        "cycles": data.cycles[:MAX_CYCLES],
        "moves": data.moves[:MAX_MOVES],
        "previous": data.previous,
        "registered": data.champion,
        "runs": {version.tags.get("cycle"): version.tags.get("run") for version in data.versions},
        "links": links,
        "project": project,
        "projects": choice.projects,
        "more_projects": choice.more,
        "own_loops": choice.own,
        "of_project": data.project,
        "acceptance": live_charts.acceptance(data.cycles, project),
        "latency": live_charts.latency(metrics.latency(now, project)),
        "timeline": live_charts.timeline(data.cycles, running, now),
    }


def _experiment(
    data: StatusData, analysis: Decision | None, running: ExperimentRecord | None, looks: Sequence[Look], now: float
) -> dict[str, Any]:
    """Return the values of the shown test: its table, its progress and its charts are of the same look."""
    of_looks = data.watched.experiment if data.watched and looks else None
    experiment = running if running and analysis else of_looks or (analysis.experiment if analysis else None)
    plan = experiment.plan if experiment else None
    return {
        "share": experiment.stage_at(now).share if experiment else 0.0,
        "divided": divided(plan),
        "stages": experiment.stages if experiment else (),
        "planned": plan.planned if plan else "",
        "progress": progress(experiment, looks[-1]) if experiment and looks else None,
        "charts": sequences(looks, plan) if plan and looks else [],
        "arms": arm_rows(analysis.verdict, analysis.experiment.champion, analysis.experiment.challenger) if analysis else [],
        "metrics": metric_rows(analysis.verdict, plan) if analysis else [],
    }
