"""Promote, roll back, reject and pause by hand, in the common loop or in a project's: a POST to a route of KINDS asks for it, and
the controller carries it out (the flow `experiment`).

Nothing that a browser adds to a request by itself opens these routes: a password of basic authentication is refused. The status
page's script sends an administrator's token in the Authorization header, which no page of another origin can do, since this app
answers no preflight and the browser guard refuses foreign origins (gateway/browsers.py).
"""

import asyncio
import re
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from infra.registry.client import NotRegistered, Registry, RegistryError
from infra.registry.lineage import PROJECT_TAG
from infra.storage import move_requests
from infra.storage.store import Refused, Unreachable
from serving.gateway.browsers import require_json
from serving.gateway.errors import BadRequest
from serving.gateway.generation import Unavailable
from serving.gateway.openapi import SECURITY, TEXT, DocumentedApp, Post, answer_schema, answers, object_schema
from serving.gateway.requests import read_json
from serving.status.history import Asked
from serving.status.sources import StatusSources

KINDS: dict[str, move_requests.Kind] = {
    "/admin/promote": "promote",
    "/admin/rollback": "roll_back",
    "/admin/reject": "reject",
    "/admin/pause": "pause",
    "/admin/resume": "resume",
}
"""The request of each route."""
MAX_BYTES = 16_384
MOST_REASON = 500
"""Characters of a reason."""
VERSION = re.compile(r"[1-9][0-9]{0,8}")
IDENTIFIER = re.compile(r"[0-9]{10}\.[0-9]{6}-[0-9a-f]{8}")
ASKED = answer_schema(("id", "state", "message"), id=TEXT, state=TEXT, message=TEXT)
NUMBER = {"type": "string", "pattern": f"^{VERSION.pattern}$"}
BODY = object_schema(
    ("version", "champion", "reason"),
    version={**NUMBER, "description": "the version to make champion; to reject, pause or resume, the challenger"},
    champion={**NUMBER, "description": "the champion as the page shows it; with another one the request is refused"},
    reason={"type": "string", "minLength": 1, "maxLength": MOST_REASON, "description": "why"},
    project={**TEXT, "description": "project with a champion of its own, whose loop is moved; left out: the common loop"},
)


def add_moves_by_hand(app: DocumentedApp, sources: StatusSources) -> None:
    for path, kind in KINDS.items():
        app.add_route(path, _endpoint(sources, kind), methods=["POST"])
        app.posts[path] = Post(BODY, answers(ASKED, 202))

    @app.get("/admin/requests/{identifier}", responses=answers(ASKED), openapi_extra=SECURITY)
    async def asked(request: Request, identifier: str, project: str = "") -> Response:
        loop = sources.loop(project, await sources.access.check(request.headers, "admin", password=True))
        if not IDENTIFIER.fullmatch(identifier):
            raise BadRequest(f"id: expected the id that the answer to POST {' or '.join(KINDS)} has", "id", 404)
        try:
            found = await asyncio.to_thread(loop.data.requests.of, identifier)
        except KeyError:
            raise BadRequest(f"there is no request {identifier}", "id", 404) from None
        except (Refused, Unreachable) as error:
            raise Unavailable(str(error)) from None
        return JSONResponse(_answer(found, sources.clock()))


def _endpoint(sources: StatusSources, kind: move_requests.Kind) -> Any:
    async def ask(request: Request) -> Response:
        credential = await sources.access.check(request.headers, "admin")
        require_json(request)
        version, champion, reason, project = parse(await read_json(request, MAX_BYTES))
        data = sources.loop(project, credential).data
        made = move_requests.make(kind, version, champion, reason, by=credential.name, now=sources.clock())
        try:
            await asyncio.to_thread(_check, data.registry, kind, version, champion)
            await asyncio.to_thread(data.requests.ask, made)
        except (RegistryError, Refused, Unreachable) as error:
            raise Unavailable(str(error)) from None
        return JSONResponse(_answer(Asked(made, None), made.time), 202)

    return ask


def parse(body: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return version, champion, reason and project of a body, the project empty without one. Raises BadRequest."""
    for name in ("version", "champion"):
        value = body.get(name)
        if not isinstance(value, str) or not VERSION.fullmatch(value):
            raise BadRequest(f'{name}: expected a version as text, such as "3", got {str(value)[:100]!r}', name)
    reason = body.get("reason")
    if not isinstance(reason, str) or not 1 <= len(reason.strip()) <= MOST_REASON:
        raise BadRequest(f"reason: expected 1 to {MOST_REASON} characters that say why", "reason")
    if not isinstance(project := body.get("project", ""), str):
        raise BadRequest(f"project: expected a project's name as text, or none, got {str(project)[:100]!r}", "project")
    return body["version"], body["champion"], reason.strip(), project


def _check(registry: Registry, kind: move_requests.Kind, version: str, champion: str) -> None:
    """Refuse a request that the controller would refuse: an unknown version, another champion than asked, no such test."""
    try:
        made_for = registry.version(version).tags.get(PROJECT_TAG, "")
    except NotRegistered:
        raise BadRequest(f"version: the registry has no version {version}", "version") from None
    if made_for not in ("", registry.project):
        loop = f"project {registry.project} or of " if registry.project else ""
        raise BadRequest(f"version: expected one of {loop}the common loop; {version} was trained for another project", "version")
    aliases = registry.aliases()
    if aliases.champion != champion:
        raise BadRequest(f"champion: it is {aliases.champion} now, not {champion}: reload the page", "champion", 409)
    if kind in ("reject", "pause", "resume") and (aliases.experiment is None or aliases.experiment.challenger != version):
        raise BadRequest(f"version: no test of version {version} runs: reload the page", "version", 409)


def _answer(asked: Asked, now: float) -> dict[str, str]:
    return {"id": asked.request.id, "state": asked.state(now), "message": asked.message(now)}
