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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined, Template

from infra.http.login import CODE_HEADER, HEADERS, QUERY, Answer
from infra.pages import charts, figures
from infra.pages.experiment_view import duration
from serving.access import Credential, Denied
from serving.gateway.generation import NOT_READY, Unavailable
from serving.gateway.openapi import HEALTH, SECURITY, TEXT, Answers, DocumentedApp, answers, object_schema, optional
from serving.metrics import Metrics, SlotState, SpoolState
from serving.recording.spool import Spool
from serving.slots.arms import Arms
from serving.status.by_hand import add_moves_by_hand
from serving.status.loop_state import loop_state, own_signs
from serving.status.sources import StatusSources, roles_of
from serving.status.verdicts import add_verdict
from serving.status.views import Choice, page_values

FOLDER = Path(__file__).parent
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
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


def add_status(app: DocumentedApp, sources: StatusSources) -> None:
    """Add health, readiness, metrics, status, the verdict, moves by hand and the page."""
    headers = _add_page(app, sources)

    @app.get("/health", responses=answers(HEALTH))
    async def health(request: Request) -> Any:
        # A supervisor asks without a token, and whether the process lives. With one it is an editor's probe, as llama.vscode's.
        if request.headers.get("authorization"):
            await sources.access.check(request.headers, "complete", password=True)
            if not sources.ready:
                raise Unavailable(NOT_READY)
        return {"status": "ok"}

    @app.get("/ready", responses=answers(READY, 200, 503))
    async def ready() -> Response:
        return readiness(sources.ready)

    @app.get("/metrics", response_class=PlainTextResponse, openapi_extra=SECURITY)
    async def metrics(request: Request) -> Response:
        credential = await sources.access.check(request.headers, "metrics", password=True)
        await sources.measure()
        loops = {loop.project: loop for loop in sources.loops(credential)}
        await asyncio.gather(*(loop.data.glance(loop.arms.experiment) for loop in loops.values()))
        now, shown = time.time(), sources.metrics
        shown.measured({p: loop.data.cycles[0].manifest.measures for p, loop in loops.items() if loop.data.cycles})
        shown.looped({p: own_signs(loop.data, now) for p, loop in loops.items()})
        shown.loop.states = {p: loop_state(loop.data, loop.arms.experiment, loop.arms.beside, now) for p, loop in loops.items()}
        arms = {project: loop.arms for project, loop in loops.items()}
        return PlainTextResponse(metrics_text(sources.metrics, sources.spool, arms), headers=headers)

    @app.get("/admin/status", responses=answers(STATUS), openapi_extra=SECURITY)
    async def status(request: Request, project: str = "") -> Response:
        credential = await sources.access.check(request.headers, "admin", password=True)
        loop = sources.loop(project, credential)
        await sources.measure()
        return JSONResponse(sources.status(loop, credential), headers=headers)

    add_verdict(app, sources)
    add_moves_by_hand(app, sources)


def _add_page(app: DocumentedApp, sources: StatusSources) -> dict[str, str]:
    """Add the page, its parts that change, its script and its login; return the headers of the pages."""
    headers = security_headers(page_source("status.html"))
    page, top, live = (page_template(name) for name in ("status.html", "head.html", "live.html"))
    script = (FOLDER / "status.js").read_bytes()

    async def values(credential: Credential, project: str) -> dict[str, Any]:
        """Return the values of the templates, read again. Raises Denied and BadRequest as StatusSources.page_loop."""
        await sources.measure()
        await sources.common.refresh()
        loop = sources.page_loop(project, credential)
        await loop.refresh()
        own, now = sources.own(credential), sources.clock()
        others, more = sources.listed({*sources.projects(credential)} - {project, *own})
        choice = Choice(own, () if loop.project else sorted({project, *others} - {"", *own}), more)
        shown = sources.status(loop, credential)
        return page_values(shown, loop.data, loop.arms.experiment, sources.metrics, sources.links, now, project, choice)

    @app.get("/", response_class=HTMLResponse, responses=PAGE_ANSWERS, openapi_extra=SECURITY)
    async def status_page(request: Request, project: str = "") -> Response:
        if request.url.query == QUERY and (logins := sources.access.logins):
            return _login_answer(logins.answer("GET", ""))
        try:
            credential = await sources.access.check(request.headers, "admin", password=True)
        except Denied as denied:
            if denied.status != 401:
                raise
            # A browser then asks for a user name, which is ignored, and a password: the token.
            text = "log in with a link that `tabloop status` prints; as a password, an administrator's token is taken"
            return PlainTextResponse(text, 401, headers | {"WWW-Authenticate": 'Basic realm="tabloop"'})
        shown = await values(credential, project)
        return HTMLResponse(page.render(shown, head=top.render(shown), live=live.render(shown)), headers=headers)

    @app.get("/admin/live", response_class=HTMLResponse, responses=LIVE_ANSWERS, openapi_extra=SECURITY)
    async def live_parts(request: Request, project: str = "") -> Response:
        credential = await sources.access.check(request.headers, "admin", password=True)
        return HTMLResponse(top.render(shown := await values(credential, project)) + live.render(shown), headers=headers)

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
    return HEADERS | {"Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items())}


def _hashes(parts: list[str]) -> str:
    """Return the source expressions that allow these inline parts of a page."""
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" for part in parts)


def metrics_text(metrics: Metrics, spool: Spool, loops: Mapping[str, Arms]) -> bytes:
    """Return Prometheus' exposition, with the spool as last measured and the slots of each loop, by project, as they are."""
    spool_state = SpoolState(spool.bytes, spool.segments, spool.oldest, spool.max_bytes, spool.set_aside)
    return metrics.text(spool_state, [state for project, arms in loops.items() for state in _slot_states(project, arms)])


def _slot_states(project: str, arms: Arms) -> list[SlotState]:
    roles = roles_of(arms)
    return [SlotState(project, slot.index, slot.version or "", roles.get(slot.index, "idle"), slot.up) for slot in arms.slots]


def readiness(is_ready: bool) -> Response:
    """Return the answer of GET /ready."""
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


def _ago(seconds: float) -> str:
    minutes = max(0.0, time.time() - seconds) / 60
    return f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"


def page_source(name: str) -> str:
    """Return the text of a template of this package, with the style of the charts where it has a place for it."""
    return (FOLDER / name).read_text().replace("/* charts */", charts.STYLE)


@cache
def page_template(name: str) -> Template:
    """Return a template of this package, with the filters that all share; compiled once in a process."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["median_and_95"] = lambda ms: f"{ms[0]:.0f} / {ms[1]:.0f} ms" if ms else ""
    environment.filters["when"] = figures.when
    environment.filters["ago"] = _ago
    environment.filters["until"] = lambda seconds: duration(seconds - time.time())
    return environment.from_string(page_source(name))
