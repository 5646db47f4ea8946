"""Views of an experiment for the status page and Prefect: metrics with intervals, confidence sequences, progress."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.pages import charts, figures
from infra.pages.charts import Chart, ConfidenceSequence, Point
from infra.records import ExperimentRecord, Look, MetricResult, Plan, PlannedMetric, Verdict

MOST_ROWS = 20
"""Looks in the table beneath a chart."""
WORDS = {"better": "better", "not_worse": "not worse", "unsure": "unsure", "worse": "worse than its margin"}


@dataclass(frozen=True)
class MetricRow:
    """A metric of a look, in words and as a picture."""

    name: str
    role: str
    champion: str
    challenger: str
    difference: str
    """The difference with its interval."""
    level: str
    """The level of the interval."""
    margin: str
    """The margin that the difference must surely keep."""
    state: str
    """The state in words."""
    mark: str
    """ "yes", "no" or empty: CSS class of the state."""
    picture: str
    """The interval beside zero and its margin, as SVG; empty where there is none."""


@dataclass(frozen=True)
class Progress:
    """Progress of an experiment."""

    requests: int
    """Requests on the arm that has fewer."""
    planned: int
    """Requests an arm at the planned end."""
    ends: float
    """When the planned end is reached at the present pace, in Unix seconds."""
    by_clock: bool
    """Whether the duration ends it, before the requests do."""
    sample: float = 1.0
    """Share of the users whose requests the test counts."""

    @property
    def counted(self) -> str:
        """The requests so far in words."""
        return f"{self.requests} of {self.planned} requests an arm{figures.sampled(self.sample)}"

    @property
    def share(self) -> float:
        """The share of the planned requests, at most 1."""
        return min(1.0, self.requests / self.planned)


def metric_rows(verdict: Verdict, plan: Plan | None) -> list[MetricRow]:
    """Return a row for each metric of a verdict; without a plan, the direction of a gain and so the margin's side are unknown."""
    planned = {metric.name: metric for metric in plan.metrics} if plan else {}
    return [_row(result, planned.get(result.name)) for result in verdict.metrics]


def sequences(looks: Sequence[Look], plan: Plan) -> list[Chart]:
    """Return the chart of each success metric's confidence sequence."""
    return [sequence_chart(found) for found in confidence_sequences(looks, plan)]


def confidence_sequences(looks: Sequence[Look], plan: Plan) -> list[ConfidenceSequence]:
    """Return the confidence sequence of each success metric over the requests of the smaller arm."""
    found = [_sequence(metric, looks, plan) for metric in plan.metrics if metric.role == "success"]
    return [sequence for sequence in found if sequence]


def sequence_chart(found: ConfidenceSequence) -> Chart:
    """Return a confidence sequence drawn, with its newest points as a table."""
    return Chart(found.title, charts.sequence(found), (found.x_label, "difference", "from", "to"), _rows(found.points))


def progress(experiment: ExperimentRecord, look: Look) -> Progress | None:
    """Return the progress of a test at a look; None without a plan or a planned size, as in a comparison with an earlier
    version."""
    begun = tuple(stage for stage in experiment.stages if stage.started <= look.time) or experiment.stages[:1]
    plan, seen = experiment.plan, experiment.model_copy(update={"stages": begun})
    if plan is None or seen.stage.name in ("watch", "anchor"):
        return None
    by_clock = experiment.started + plan.max_seconds
    if seen.counting.name != "test":  # requests of earlier stages are not the test's
        return Progress(0, plan.planned_requests, by_clock, True, plan.sample)
    # A test that a pause interrupted goes on: its requests count from its first start.
    requests, elapsed = _requests(look), max(look.time - seen.counts_from, 1.0)
    by_requests = seen.counts_from + elapsed * plan.planned_requests / max(requests, 1)
    return Progress(requests, plan.planned_requests, min(by_requests, by_clock), by_clock < by_requests, plan.sample)


def divided(plan: Plan | None) -> str:
    """Return in words what a test divides between the arms."""
    return "each user's blocks of time" if plan and plan.design == "crossover" else "users"


def duration(seconds: float) -> str:
    """Return a duration in words."""
    minutes = max(0.0, seconds) / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 72 * 60 else f"{minutes / 1440:.0f} days"


def words(name: str) -> str:
    """Return a name of the records as readable words."""
    return name.replace("_", " ")


def _row(result: MetricResult, planned: PlannedMetric | None) -> MetricRow:
    margins, name = _margins(result, planned), figures.title(result.name)
    difference, picture = "cannot be compared", ""
    mark = {"better": "yes", "worse": "no"}.get(result.state, "")
    if result.estimate is not None and result.low is not None and result.high is not None:
        difference = figures.change(result.name, result.estimate, result.low, result.high)
        described = f"{name}: difference {difference} at {_level(result.level)}, {WORDS[result.state]}"
        picture = charts.interval(Point(0, result.estimate, result.low, result.high), margins, mark, described)
    return MetricRow(
        name=name,
        role=result.role,
        champion=f"{result.champion:.{figures.digits(result.name)}f}",
        challenger=f"{result.challenger:.{figures.digits(result.name)}f}",
        difference=difference,
        level=_level(result.level),
        margin=_bound(result.margin, planned),
        state=WORDS[result.state],
        mark=mark,
        picture=picture,
    )


def _sequence(metric: PlannedMetric, looks: Sequence[Look], plan: Plan) -> ConfidenceSequence | None:
    counted = of_one_stage(looks)
    found = [(look, result) for look in counted for result in look.verdict.metrics if result.name == metric.name]
    points = [
        Point(_requests(look), result.estimate, result.low, result.high) for look, result in found if result.estimate is not None
    ]
    if not points:
        return None
    last, level = points[-1], _level(found[-1][1].level)
    description = (
        f"Difference, challenger minus champion, after {last.x:.0f} of {plan.planned_requests} requests an arm: "
        f"{figures.change(metric.name, last.value, last.low or 0.0, last.high or 0.0)} at {level}, "
        f"valid at every look. Zero is no difference."
    )
    return ConfidenceSequence(
        title=f"{figures.title(metric.name)} ({metric.better} is better): difference, {level} confidence sequence",
        description=description,
        points=points,
        x_label="requests on the smaller arm",
        end=plan.planned_requests,
        margins=_margins(found[-1][1], metric),
    )


def of_one_stage(looks: Sequence[Look]) -> Sequence[Look]:
    """Return the looks whose requests add up: those of the test, pauses included, without its ramp and its watch.

    Where there was no test, those of the newest look's stage.
    """
    tested = [look for look in looks if look.stage in ("test", "paused")]
    return tested or [look for look in looks if look.stage == looks[-1].stage]


def _rows(points: Sequence[Point]) -> tuple[tuple[str, ...], ...]:
    """Return the newest points of a sequence as rows of a table, the newest first."""
    return tuple(
        (f"{p.x:.0f}", *("" if value is None else _signed(value) for value in (p.value, p.low, p.high)))
        for p in points[: -MOST_ROWS - 1 : -1]
    )


def _margins(result: MetricResult, planned: PlannedMetric | None) -> tuple[float, ...]:
    """Return the bounds of a metric's difference by the direction of a gain."""
    match planned.better if planned else "":
        case "more":
            return (-result.margin,)
        case "fewer":
            return (result.margin,)
        case "same":
            return (-result.margin, result.margin)
    return ()


def _bound(margin: float, planned: PlannedMetric | None) -> str:
    match planned.better if planned else "":
        case "more":
            return f"above {-margin:.3g}"
        case "fewer":
            return f"below +{margin:.3g}"
        case "same":
            return f"within ±{margin:.3g}"
    return f"{margin:.3g}"


def _requests(look: Look) -> int:
    return min(look.verdict.requests.values(), default=0)


def _signed(value: float) -> str:
    return f"{value:+.3g}"


def _level(level: float) -> str:
    return f"{100 * level:.4g} %"
