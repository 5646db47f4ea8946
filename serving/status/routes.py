"""The status routes: for supervisors, for Prometheus, and the page at / for people.

The page shows what this replica served, the registry's tests and versions, and the last cycles in the object store. The gate
stores each analysis of a running test in the registry, its looks in the object store, and each verdict on its version.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined

from infra import charts
from infra.experiment_view import duration, metric_rows, progress, sequences
from infra.login import CODE_HEADER, QUERY, Answer
from infra.records import Decision, Rate
from serving.access import Access, Denied
from serving.gateway.drain import Drain
from serving.gateway.openapi import HEALTH, SECURITY, TEXT, Answers, DocumentedApp, answers, object_schema, optional
from serving.metrics import Metrics, SlotState, SpoolState
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from serving.slots.arms import Arms
from serving.status.by_hand import HandSources, add_moves_by_hand
from serving.status.data import Links, StatusData
from serving.status.verdicts import VerdictSources, add_verdict

PAGE = Path(__file__).with_name("status.html")
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
READY = object_schema(("ready",), ready={"type": "boolean"})
STATUS = object_schema(
    ("ready", "champion", "challenger", "experiment", "slots", "problems", "spool", "shipped", "store_error"),
    ready={"type": "boolean"},
    champion=optional(TEXT),
    challenger=optional(TEXT),
    experiment=optional({"type": "object"}),
    slots={"type": "array", "items": {"type": "object"}},
    problems={"type": "object", "additionalProperties": TEXT},
    spool={"type": "object"},
    shipped={"type": "object"},
    store_error=TEXT,
)
PAGE_ANSWERS: Answers = {401: {"description": "the browser asks for a password", "content": {"text/plain": {"schema": TEXT}}}}


@dataclass(frozen=True)
class StatusSources:
    """The parts of the app whose state the routes show."""

    access: Access
    arms: Arms
    spool: Spool
    shipper: Shipper
    metrics: Metrics
    data: StatusData
    links: Links
    drain: Drain
    clock: Callable[[], float] = time.time


def add_status(app: DocumentedApp, sources: StatusSources) -> None:
    """Add health, readiness, metrics, status, the verdict, moves by hand and the page."""
    source = PAGE.read_text().replace("/* charts */", charts.STYLE)
    page, headers = _template(source), security_headers(source)

    @app.get("/", response_class=HTMLResponse, responses=PAGE_ANSWERS, openapi_extra=SECURITY)
    async def status_page(request: Request) -> Response:
        if request.url.query == QUERY and (logins := sources.access.logins):
            return _login_answer(logins.answer("GET", ""))
        try:
            await sources.access.check(request.headers, "admin", password=True)
        except Denied as denied:
            if denied.status != 401:
                raise
            # A browser then asks for a user name, which is ignored, and a password: the token.
            text = "log in with a link that `make status` prints; as a password, an administrator's token is taken"
            return PlainTextResponse(text, 401, headers | {"WWW-Authenticate": 'Basic realm="tabloop"'})
        await _measure(sources)
        await sources.data.refresh(sources.arms.experiment)
        return HTMLResponse(page.render(_page_values(sources)), headers=headers)

    @app.post("/", include_in_schema=False)  # of the login page alone
    async def log_in(request: Request) -> Response:
        logins = sources.access.logins if request.url.query == QUERY else None
        if logins is None:
            return PlainTextResponse("expected a login link of `make status`\n", 403, headers)
        return _login_answer(logins.answer("POST", request.headers.get(CODE_HEADER, "")))

    @app.get("/health", responses=answers(HEALTH))
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/ready", responses=answers(READY, 200, 503))
    async def ready() -> Response:
        is_ready = _ready(sources)
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, openapi_extra=SECURITY)
    async def metrics(request: Request) -> Response:
        await sources.access.check(request.headers, "metrics", password=True)
        await _measure(sources)
        await sources.data.refresh(sources.arms.experiment)
        sources.metrics.measured(sources.data.cycles[0].manifest.measures if sources.data.cycles else ())
        return PlainTextResponse(metrics_text(sources.metrics, sources.spool, sources.arms), headers=headers)

    @app.get("/admin/status", responses=answers(STATUS), openapi_extra=SECURITY)
    async def status(request: Request) -> Response:
        await sources.access.check(request.headers, "admin", password=True)
        await _measure(sources)
        return JSONResponse(_status(sources), headers=headers)

    add_verdict(app, VerdictSources(sources.access, sources.arms, sources.data))
    add_moves_by_hand(app, HandSources(sources.access, sources.data.registry, sources.data.requests, sources.clock))


def _login_answer(answer: Answer) -> Response:
    return Response(answer.body, answer.status, answer.headers)


def security_headers(page: str) -> dict[str, str]:
    """Return the headers of what a browser shows: the page's own style and script, which may ask this app alone; no frame."""
    policy = {
        "default-src": "'none'",
        "style-src": _hashes(STYLE.findall(page)),
        "script-src": _hashes(SCRIPT.findall(page)),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def _hashes(parts: list[str]) -> str:
    """Return the source expressions that allow these inline parts of a page."""
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" for part in parts)


def metrics_text(metrics: Metrics, spool: Spool, arms: Arms) -> bytes:
    """Return Prometheus' exposition, with the spool as last measured and the slots as they are."""
    roles = _roles(arms)
    spool_state = SpoolState(spool.bytes, spool.segments, spool.oldest, spool.set_aside)
    slot_states = [SlotState(slot.index, slot.version or "", roles.get(slot.index, "idle"), slot.up) for slot in arms.slots]
    return metrics.text(spool_state, slot_states)


async def _measure(sources: StatusSources) -> None:
    """Measure the spool now: while the object store is unavailable, the shipper measures it less and less often."""
    await asyncio.to_thread(sources.spool.measure)


def _roles(arms: Arms) -> dict[int | None, str]:
    return {arms.champion: "champion", arms.challenger: "challenger"}


def _ready(sources: StatusSources) -> bool:
    return sources.arms.ready and not sources.drain.began


def _status(sources: StatusSources) -> dict[str, Any]:
    arms, spool, roles = sources.arms, sources.spool, _roles(sources.arms)
    slots = [
        {
            "slot": slot.index,
            "url": slot.engine.url,
            "role": roles.get(slot.index, "idle"),
            "version": slot.version,
            "up": slot.up,
            "state": slot.state,
            "in_flight": slot.in_flight,
        }
        for slot in arms.slots
    ]
    versions = {role: arms.slots[index].version for index, role in roles.items() if index is not None}
    return {
        "ready": _ready(sources),
        "champion": versions.get("champion"),
        "challenger": versions.get("challenger"),
        "experiment": arms.experiment.model_dump() if arms.experiment else None,
        "slots": slots,
        "problems": arms.problems | ({"tokens": problem} if (problem := sources.access.tokens.problem) else {}),
        "spool": {"bytes": spool.bytes, "segments": spool.segments, "oldest_seconds": spool.oldest, "set_aside": spool.set_aside},
        "shipped": sources.shipper.shipped,
        "store_error": sources.shipper.error,
    }


def _page_values(sources: StatusSources) -> dict[str, Any]:
    status, data = _status(sources), sources.data
    running = sources.arms.experiment
    errors = {"object store": sources.shipper.error, **data.problems}
    # The analysis of an earlier test says nothing about the running one.
    analysis = data.analysis if data.analysis and (running is None or data.analysis.experiment.id == running.id) else None
    return {
        **status,
        "problems": [*status["problems"].items(), *((part, problem) for part, problem in errors.items() if problem)],
        "running": running is not None,
        "analysis": analysis,
        "asked": data.asked,
        "now": sources.clock(),
        **_experiment(sources, analysis),
        "recent": sources.metrics.recent(sources.clock()),
        "feedback_counts": sorted(sources.metrics.feedback_counts.items()),
        "versions": data.versions,
        "cycles": data.cycles,
        "moves": data.moves,
        "runs": {version.tags.get("cycle"): version.tags.get("run") for version in data.versions},
        "links": sources.links,
    }


def _experiment(sources: StatusSources, analysis: Decision | None) -> dict[str, Any]:
    """Return what the looks at the shown experiment tell."""
    watched = sources.data.watched
    if watched and analysis and watched.experiment.id != analysis.experiment.id:
        watched = None
    experiment = watched.experiment if watched else analysis.experiment if analysis else None
    stages = experiment.stages if experiment else ()
    drawn = sequences(watched.looks, experiment.plan) if watched and experiment and experiment.plan else []
    return {
        "share": experiment.stage_at(sources.clock()).share if experiment else 0.0,
        "stages": stages,
        "planned": experiment.plan.planned if experiment and experiment.plan else "",
        "progress": progress(watched.experiment, watched.last) if watched else None,
        "charts": drawn,
        "metrics": metric_rows(analysis.verdict, experiment.plan) if analysis and experiment else [],
    }


def _ago(seconds: float) -> str:
    minutes = max(0.0, time.time() - seconds) / 60
    return f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"


def _template(source: str) -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = _percent
    environment.filters["median_and_95"] = lambda ms: f"{ms[0]:.0f} / {ms[1]:.0f} ms" if ms else ""
    environment.filters["when"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    environment.filters["ago"] = _ago
    environment.filters["until"] = lambda seconds: duration(seconds - time.time())
    return environment.from_string(source)


def _percent(rate: Rate) -> str:
    return f"{100 * rate.rate:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
