"""A dashboard of panels, and the JSON that Grafana takes, written by Grafana's own builders."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The variable by which the reader chooses the data source."""
WIDTH, HEIGHT, STAT_HEIGHT = 8, 7, 4
"""Of a panel, in Grafana's units: a row is 24 wide."""
Kind = Literal["lines", "number", "bars"]


@dataclass(frozen=True)
class Query:
    """A query in PromQL."""

    expr: str
    legend: str = ""
    """Name of each series, with labels in {{ }}; empty: Grafana's own."""


@dataclass(frozen=True)
class Panel:
    """A panel. One of the kind `number` or `bars` shows the newest value, `lines` the course."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    """Unit by Grafana's name."""
    kind: Kind = "lines"


@dataclass(frozen=True)
class Board:
    """A dashboard: titles of rows with their panels."""

    name: str
    """Name of its file, and with "tabloop-" before it its uid."""
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    since: str = "now-6h"
    """The time that is shown at first."""

    def panels(self) -> Iterator[Panel]:
        for _, panels in self.rows:
            yield from panels

    def json(self) -> str:
        """Return the dashboard as Grafana takes it; the same text for the same board."""
        builder = (
            dashboard.Dashboard(self.title)
            .uid(f"tabloop-{self.name}")
            .description(self.description)
            .tags(["tabloop"])
            .timezone("browser")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .time(self.since, "now")
            .refresh("30s")
            .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        )
        ids = count(1)
        for title, panels in self.rows:
            builder = builder.with_row(dashboard.Row(title).id(next(ids)))
            for panel in panels:
                builder = builder.with_panel(built(panel).id(next(ids)))
        return json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def lines(title: str, description: str, *queries: Query, unit: str = "short") -> Panel:
    """Return a panel with a line for each series."""
    return Panel(title, description, queries, unit)


def number(title: str, description: str, expr: str, unit: str = "short") -> Panel:
    return Panel(title, description, (Query(expr),), unit, "number")


def bars(title: str, description: str, query: Query, unit: str = "short") -> Panel:
    """Return a panel with a bar for the newest value of each series."""
    return Panel(title, description, (query,), unit, "bars")


def built(panel: Panel) -> timeseries.Panel | stat.Panel | bargauge.Panel:
    made: timeseries.Panel | stat.Panel | bargauge.Panel
    if panel.kind == "lines":
        legend = (
            common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        )
        made = timeseries.Panel().span(WIDTH).height(HEIGHT).legend(legend).fill_opacity(8)
    else:
        newest = common.ReduceDataOptions().calcs(["lastNotNull"])
        if panel.kind == "number":
            made = stat.Panel().span(WIDTH // 2).height(STAT_HEIGHT).graph_mode(BigValueGraphMode.NONE).reduce_options(newest)
        else:
            made = bargauge.Panel().span(WIDTH).height(HEIGHT).reduce_options(newest)
    made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    for number_, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number_)).datasource(SOURCE)
        target = target.legend_format(query.legend) if query.legend else target
        made = made.with_target(target.range() if panel.kind == "lines" else target.instant())
    return made
