"""The page of a running experiment in Prefect."""

from infra.pages import charts, figures
from infra.pages.experiment_view import duration, metric_rows, progress, sequences, words
from infra.pages.figures import when
from infra.pages.markdown import table
from infra.records import ExperimentRecord, Look, Verdict
from infra.storage import looks as log
from infra.storage.store import ObjectStore
from tasks.experiments.verdict.anchor import ANCHOR

MOST_POINTS = 60
"""Looks of a confidence sequence, about."""


def experiment_page(store: ObjectStore, experiment: ExperimentRecord, look: Look) -> str:
    """Return an experiment's last look in Markdown: sequences, metrics, checks, time to the planned end."""
    verdict, plan = look.verdict, experiment.plan
    looks = log.some(store, experiment.id, look.number, MOST_POINTS)
    rows = metric_rows(verdict, plan)
    metrics = [(r.name, r.role, r.champion, r.challenger, r.difference, r.level, r.margin, r.state) for r in rows]
    lines = [
        f"# {experiment.id}: {verdict.verdict}",
        verdict.reason,
        f"\nVersion {experiment.challenger} against {experiment.champion}: {look.stage}, {look.share:.0%} on the challenger; "
        f"look {look.number}, {when(look.time)}",
        *_stages(experiment),
        *([f"\n{arms_table(verdict, experiment)}"] if verdict.requests else []),
        *_progress(experiment, look),
        *([f"\nPlanned: {plan.planned}"] if plan and plan.planned else []),
        *(f"\n![{chart.title}]({charts.data_uri(chart.svg)})" for chart in (sequences(looks, plan) if plan else [])),
        "",
        table(("metric", "role", "champion", "challenger", "difference", "level", "margin", "state"), metrics),
        "",
        table(("check", "state", "numbers"), [(words(check.name), check.state, check.reason) for check in verdict.checks]),
    ]
    return "\n".join(lines)


def arms_table(verdict: Verdict, experiment: ExperimentRecord) -> str:
    """Return the arms of a verdict in Markdown: requests, acceptance and kept characters with their intervals."""
    since = ", with all champions since the anchor" if experiment.stage.name == ANCHOR else ""
    rows = figures.arm_rows(verdict, experiment.champion, f"{experiment.challenger}{since}")
    means = (f"{name} per request [95 %]" for name in ("acceptance", "kept characters", "seconds saved"))
    cells = [(r.arm, r.version, r.users, r.requests, r.acceptance or "-", r.kept or "-", r.saved or "-") for r in rows]
    return table(("arm", "version", "users", "requests", *means), cells)


def _progress(experiment: ExperimentRecord, look: Look) -> list[str]:
    found = progress(experiment, look)
    if found is None:
        return []
    ends = f"{when(found.ends)}, in {duration(found.ends - look.time)}, by {'the clock' if found.by_clock else 'requests'}"
    return [f"\n{found.counted} ({found.share:.0%}); planned end {ends}"]


def _stages(experiment: ExperimentRecord) -> list[str]:
    """Return the stages so far, the present one last."""
    stages = [
        f"{stage.name} at {stage.share:.0%} from {when(stage.started)}{f' ({stage.reason})' if stage.reason else ''}"
        for stage in experiment.stages
    ]
    return [f"\nStages: {'; '.join(stages)}"] if stages else []
