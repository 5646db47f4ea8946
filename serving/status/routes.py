"""The status routes: for supervisors, for Prometheus, and the page at / for people.

The page shows what this replica served, the registry's tests and versions, and the last cycles in the object store. The gate
stores each analysis of a running test in the registry, its looks in the object store, and each verdict on its version. The page's
script, /status.js, asks for what has changed at /admin/live.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined

from infra.http.login import CODE_HEADER, QUERY, Answer
from infra.pages import charts
from infra.pages.experiment_view import duration
from infra.storage import loop_runs
from serving.access import Access, Denied
from serving.gateway.drain import Drain
from serving.gateway.errors import BadRequest
from serving.gateway.generation import NOT_READY, Unavailable
from serving.gateway.openapi import HEALTH, SECURITY, TEXT, Answers, DocumentedApp, answers, object_schema, optional
from serving.metrics import Metrics, SlotState, SpoolState
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from serving.slots.arms import Arms
from serving.status.by_hand import add_moves_by_hand
from serving.status.data import Links, StatusData
from serving.status.loop_state import loop_state
from serving.status.verdicts import add_verdict
from serving.status.views import page_values

FOLDER = Path(__file__).parent
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
PROJECT = re.compile(r"[A-Za-z0-9_.-]{0,64}")
READY = object_schema(("ready",), ready={"type": "boolean"})
STATUS = object_schema(
    ("ready", "champion", "challenger", "experiment", "projects", "slots", "problems", "spool", "shipped", "store_error"),
    ready={"type": "boolean"},
    champion=optional(TEXT),
    challenger=optional(TEXT),
    experiment=optional({"type": "object"}),
    projects={"type": "object", "additionalProperties": {"type": "object"}},
    slots={"type": "array", "items": {"type": "object"}},
    problems={"type": "object", "additionalProperties": TEXT},
    spool={"type": "object"},
    shipped={"type": "object"},
    store_error=TEXT,
)
LIVE_ANSWERS: Answers = {200: {"description": "the parts of the page that change", "content": {"text/html": {"schema": TEXT}}}}
SCRIPT_ANSWERS: Answers = {200: {"description": "the page's script", "content": {"text/javascript": {"schema": TEXT}}}}
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
    own_arms: Mapping[str, Arms] = field(default_factory=dict)
    """The arms of projects with a champion of their own."""


def add_status(app: DocumentedApp, sources: StatusSources) -> None:
    """Add health, readiness, metrics, status, the verdict, moves by hand and the page."""
    headers = _add_page(app, sources)

    @app.get("/health", responses=answers(HEALTH))
    async def health(request: Request) -> Any:
        # A supervisor asks without a token, and whether the process lives. With one it is an editor's probe, as llama.vscode's.
        if request.headers.get("authorization"):
            await sources.access.check(request.headers, "complete", password=True)
            if not _ready(sources):
                raise Unavailable(NOT_READY)
        return {"status": "ok"}

    @app.get("/ready", responses=answers(READY, 200, 503))
    async def ready() -> Response:
        return readiness(_ready(sources))

    @app.get("/metrics", response_class=PlainTextResponse, openapi_extra=SECURITY)
    async def metrics(request: Request) -> Response:
        await sources.access.check(request.headers, "metrics", password=True)
        await _measure(sources)
        await sources.data.glance(sources.arms.experiment)
        sources.metrics.measured(sources.data.cycles[0].manifest.measures if sources.data.cycles else ())
        signs = (*loop_runs.signs(sources.data.runs, now := time.time()), loop_runs.prefect(sources.data.runs, now))
        sources.metrics.looped({sign.name: sign.ok for sign in signs})
        sources.metrics.loop.state = loop_state(sources.data, sources.arms.experiment, sources.arms.beside, now)
        return PlainTextResponse(metrics_text(sources.metrics, sources.spool, sources.arms), headers=headers)

    @app.get("/admin/status", responses=answers(STATUS), openapi_extra=SECURITY)
    async def status(request: Request) -> Response:
        await sources.access.check(request.headers, "admin", password=True)
        await _measure(sources)
        return JSONResponse(_status(sources), headers=headers)

    add_verdict(app, sources.access, sources.arms, sources.data)
    add_moves_by_hand(app, sources.access, sources.data, sources.clock)


def _add_page(app: DocumentedApp, sources: StatusSources) -> dict[str, str]:
    """Add the page, its parts that change, its script and its login; return the headers of the pages."""
    source = (FOLDER / "status.html").read_text().replace("/* charts */", charts.STYLE)
    environment, headers = page_environment(), security_headers(source)
    page = environment.from_string(source)
    top, live = (environment.from_string((FOLDER / name).read_text()) for name in ("head.html", "live.html"))
    script = (FOLDER / "status.js").read_bytes()

    async def values(request: Request) -> dict[str, Any]:
        """Return the values of the templates, read again."""
        if not PROJECT.fullmatch(project := request.query_params.get("project", "")):
            raise BadRequest("project: expected at most 64 letters, digits, '_', '.' and '-'", "project")
        await _measure(sources)
        running = sources.arms.experiment
        await sources.data.refresh(running)
        now = sources.clock()
        return page_values(_status(sources), sources.data, running, sources.metrics, sources.links, now, project)

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
            text = "log in with a link that `tabloop status` prints; as a password, an administrator's token is taken"
            return PlainTextResponse(text, 401, headers | {"WWW-Authenticate": 'Basic realm="tabloop"'})
        shown = await values(request)
        return HTMLResponse(page.render(shown, head=top.render(shown), live=live.render(shown)), headers=headers)

    @app.get("/admin/live", response_class=HTMLResponse, responses=LIVE_ANSWERS, openapi_extra=SECURITY)
    async def live_parts(request: Request, project: str = "") -> Response:
        await sources.access.check(request.headers, "admin", password=True)
        return HTMLResponse(top.render(shown := await values(request)) + live.render(shown), headers=headers)

    @app.get("/status.js", response_class=Response, responses=SCRIPT_ANSWERS, openapi_extra=SECURITY)
    async def status_script(request: Request) -> Response:
        await sources.access.check(request.headers, "admin", password=True)
        return Response(script, headers=headers, media_type="text/javascript")

    @app.post("/", include_in_schema=False)  # of the login page alone
    async def log_in(request: Request) -> Response:
        logins = sources.access.logins if request.url.query == QUERY else None
        if logins is None:
            return PlainTextResponse("expected a login link of `tabloop status`\n", 403, headers)
        return _login_answer(logins.answer("POST", request.headers.get(CODE_HEADER, "")))

    return headers


def _login_answer(answer: Answer) -> Response:
    return Response(answer.body, answer.status, answer.headers)


def security_headers(page: str) -> dict[str, str]:
    """Return the headers of the pages: the page's own style, this app's script, no frame."""
    policy = {
        "default-src": "'none'",
        "style-src": _hashes(STYLE.findall(page)),
        "script-src": "'self'",
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
    spool_state = SpoolState(spool.bytes, spool.segments, spool.oldest, spool.max_bytes, spool.set_aside)
    slot_states = [SlotState(slot.index, slot.version or "", roles.get(slot.index, "idle"), slot.up) for slot in arms.slots]
    return metrics.text(spool_state, slot_states)


async def _measure(sources: StatusSources) -> None:
    """Measure the spool now: while the object store is unavailable, the shipper measures it less and less often."""
    await asyncio.to_thread(sources.spool.measure)


def readiness(is_ready: bool) -> Response:
    """Return the answer of GET /ready."""
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


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
    return {
        "ready": _ready(sources),
        **_versions(arms),
        "experiment": arms.experiment.model_dump() if arms.experiment else None,
        "projects": {project: _versions(own) for project, own in sources.own_arms.items()},
        "slots": slots,
        "problems": arms.problems | _own_problems(sources) | sources.access.problems,
        "spool": {"bytes": spool.bytes, "segments": spool.segments, "oldest_seconds": spool.oldest, "set_aside": spool.set_aside},
        "shipped": sources.shipper.shipped,
        "store_error": sources.shipper.error,
    }


def _versions(arms: Arms) -> dict[str, str | None]:
    """Return the versions that serve as champion and challenger."""
    slots = {role: arms.slots[index].version for index, role in _roles(arms).items() if index is not None}
    return {role: slots.get(role) for role in ("champion", "challenger")}


def _own_problems(sources: StatusSources) -> dict[str, str]:
    """Return the problems of the projects' loops; the registry's are the common loop's too."""
    found = {f"{project}: {part}": text for project, own in sources.own_arms.items() for part, text in own.problems.items()}
    return {part: text for part, text in found.items() if not part.endswith(": registry")}


def _ago(seconds: float) -> str:
    minutes = max(0.0, time.time() - seconds) / 60
    return f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"


def page_environment() -> Environment:
    """Return the environment of the pages' templates, with the filters that they share."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["median_and_95"] = lambda ms: f"{ms[0]:.0f} / {ms[1]:.0f} ms" if ms else ""
    environment.filters["when"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    environment.filters["ago"] = _ago
    environment.filters["until"] = lambda seconds: duration(seconds - time.time())
    return environment
