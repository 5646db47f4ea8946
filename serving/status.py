"""How the app is doing: for supervisors, for Prometheus, and a page at / for a person.

The page shows what this replica served, what the registry says of tests and versions, and the last cycles as the object store has
them: the gate leaves every look at a running test in the registry, and every verdict on its version.
"""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined

from infra.records import Rate
from serving.access import Denied
from serving.standing import Serving

PAGE = Path(__file__).with_name("status.html")


def add_state(app: FastAPI, serving: Serving) -> None:
    """Models, health, readiness, metrics, status and the page."""
    page = _template()

    @app.get("/", response_class=HTMLResponse)
    async def person(request: Request) -> Response:
        try:
            serving.access.check(request.headers, "admin")
        except Denied as denied:
            if denied.status != 401:
                raise
            # A browser then asks for a password: the token; the name does not matter.
            return PlainTextResponse(
                "the password is an administrator's token", 401, {"WWW-Authenticate": 'Basic realm="tabloop"'}
            )
        await _measure(serving)
        await serving.board.refresh()
        return HTMLResponse(page.render(_person(serving)), headers={"Cache-Control": "no-store"})

    @app.get("/v1/models")
    async def models(request: Request) -> Any:
        serving.access.check(request.headers, "complete")
        return {"object": "list", "data": [{"id": serving.model, "object": "model", "created": 0, "owned_by": "tabloop"}]}

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/v1/health")
    async def tabby_health(request: Request) -> Any:
        version = {"build_date": "", "build_timestamp": "", "git_sha": "", "git_describe": "tabloop"}
        return {
            "model": serving.model,
            "device": "remote",  # the engines' machines, of which this one knows nothing more
            "arch": "",
            "cpu_info": "",
            "cpu_count": 0,
            "cuda_devices": [],
            "version": version,
        }

    @app.get("/v1beta/server_setting")
    async def tabby_setting(request: Request) -> Any:
        serving.access.check(request.headers, "complete")
        return {"disable_client_side_telemetry": True}  # what developers type is nobody else's

    @app.get("/ready")
    async def ready() -> Response:
        up = serving.arms.ready
        return JSONResponse({"ready": up, "slots": [slot.state for slot in serving.arms.slots]}, 200 if up else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        await _measure(serving)
        return PlainTextResponse(serving.metrics.text(serving.arms, serving.recorder.spool))

    @app.get("/admin/status")
    async def status(request: Request) -> Any:
        serving.access.check(request.headers, "admin")
        await _measure(serving)
        return _status(serving)


async def _measure(serving: Serving) -> None:
    """What waits, as it is now: while the object store is away the shipper measures ever less often."""
    await asyncio.to_thread(serving.recorder.spool.measure)


def _status(serving: Serving) -> dict[str, Any]:
    arms, spool = serving.arms, serving.recorder.spool
    roles = {arms.champion: "champion", arms.challenger: "challenger"}
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
    held = {role: arms.slots[index].version for index, role in roles.items() if index is not None}
    return {
        "ready": arms.ready,
        "champion": held.get("champion"),
        "challenger": held.get("challenger"),
        "experiment": arms.experiment.model_dump() if arms.experiment else None,
        "slots": slots,
        "problems": arms.problems,
        "spool": {"bytes": spool.bytes, "segments": spool.segments, "oldest_seconds": spool.oldest, "set_aside": spool.set_aside},
        "shipped": serving.shipper.shipped,
        "store_error": serving.shipper.error,
    }


def _person(serving: Serving) -> dict[str, Any]:
    status, board = _status(serving), serving.board
    running = serving.arms.experiment
    others = {"object store": serving.shipper.error, **board.problems}
    # A look at an earlier test says nothing of the one that runs.
    look = board.look if board.look and (running is None or board.look.experiment.id == running.id) else None
    return {
        **status,
        "problems": [*status["problems"].items(), *((part, problem) for part, problem in others.items() if problem)],
        "running": running is not None,
        "look": look,
        "recent": serving.metrics.recent(serving.clock()),
        "judgements": sorted(serving.metrics.judgements.items()),
        "versions": board.versions,
        "cycles": board.cycles,
        "runs": {version.tags.get("cycle"): version.tags.get("run") for version in board.versions},
        "links": serving.links,
    }


def _ago(seconds: float) -> str:
    minutes = max(0.0, time.time() - seconds) / 60
    return f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"


def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = _percent
    environment.filters["span"] = lambda ms: f"{ms[0]:.0f} / {ms[1]:.0f} ms" if ms else ""
    environment.filters["when"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    environment.filters["ago"] = _ago
    return environment.from_string(PAGE.read_text())


def _percent(rate: Rate) -> str:
    return f"{100 * rate.rate:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
