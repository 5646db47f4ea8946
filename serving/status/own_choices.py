"""What a developer chooses on their own page: POST /me/opt-out and POST /me/forget, and how a removal stands, GET /me/forget.

As with moves (by_hand.py), nothing that a browser adds to a request by itself opens these routes: they take a bearer token and
JSON alone, and the browser guard refuses foreign origins. The body names the user as the page shows them, so that a page which
was opened with another token changes nothing. The controller carries out a removal (tasks/steps/erasures.py).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from infra.identity import HASH
from infra.records import ErasureRequest
from infra.storage import choices
from infra.storage.loop_runs import LATE_SECONDS, span
from infra.storage.store import ObjectStore, Refused, Unreachable
from serving.access import Credential, Denied
from serving.gateway.browsers import require_json
from serving.gateway.completions import Gateway
from serving.gateway.errors import BadRequest
from serving.gateway.generation import Unavailable
from serving.gateway.openapi import SECURITY, TEXT, Answers, DocumentedApp, Post, answer_schema, answers, object_schema
from serving.gateway.requests import read_json

OPT_OUT, FORGET, SCRIPT = "/me/opt-out", "/me/forget", "/me.js"
MAX_BYTES = 4_096
SHARED = ("token", "simulation", "admin")
"""Names of the tokens of [serving] itself, which are no one person's (serving/access/credentials.py)."""
USER = {**TEXT, "pattern": f"^(?:{HASH.pattern})$", "description": "the user's keyed hash, as the page shows it"}
CHOSEN = answer_schema(("opted_out",), opted_out={"type": "boolean"})
STANDS = answer_schema(("state", "message"), state={"enum": ["none", "waiting", "done"]}, message=TEXT)
SCRIPT_ANSWERS: Answers = {200: {"description": "the page's script", "content": {"text/javascript": {"schema": TEXT}}}}
AWAY = (Refused, Unreachable)


@dataclass(frozen=True)
class Standing:
    """How a developer's removal stands."""

    state: str
    """none, waiting or done."""
    message: str


def is_shared(credential: Credential) -> bool:
    """Return whether a token is no one person's, so that nobody may choose for all who use it."""
    return credential.name in SHARED or "users" in credential.roles


def standing(store: ObjectStore, user: str, now: float) -> Standing:
    """Return how a user's removal stands. Raises the store's errors."""
    request, done = choices.erasure_of(store, user)
    if request is None:
        by_hand = choices.was_forgotten(store, user)
        return Standing("done", "an administrator had it done") if by_hand else Standing("none", "")
    if done:
        return Standing("done", request.message)
    if now - max(request.time, request.noted) > LATE_SECONDS["experiment"]:
        late = f"the watch has not seen to it for {span(now - max(request.time, request.noted))}"
        return Standing("waiting", f"{late}: an administrator sees why with `tabloop status`; it is done once the watch runs")
    return Standing("waiting", request.message or "the watch has it carried out, within a minute")


def add_own_choices(app: DocumentedApp, gateway: Gateway, headers: dict[str, str]) -> None:
    """Add the routes, and the page's script; `headers` of the page."""
    script = Path(__file__).with_name("own.js").read_bytes()
    app.add_route(OPT_OUT, _endpoint(gateway, _opt_out), methods=["POST"])
    app.posts[OPT_OUT] = Post(object_schema(("user", "opted_out"), user=USER, opted_out={"type": "boolean"}), answers(CHOSEN))

    @app.get(FORGET, responses=answers(STANDS), openapi_extra=SECURITY)
    async def stands(request: Request) -> Response:
        credential = await gateway.access.check(request.headers, "complete", password=True)
        user = gateway.access.caller(request.headers, credential, None, "").user
        return JSONResponse(vars(await _standing(gateway, user, gateway.clock())), headers=headers)

    app.add_route(FORGET, _endpoint(gateway, _forget), methods=["POST"])
    app.posts[FORGET] = Post(object_schema(("user",), user=USER), answers(STANDS, 202))

    @app.get(SCRIPT, response_class=Response, responses=SCRIPT_ANSWERS, openapi_extra=SECURITY)
    async def own_script(request: Request) -> Response:
        await gateway.access.check(request.headers, "complete", password=True)
        return Response(script, headers=headers, media_type="text/javascript")


def _endpoint(gateway: Gateway, choose: Any) -> Any:
    async def chosen(request: Request) -> Response:
        credential = await gateway.access.check(request.headers, "complete")
        require_json(request)
        if is_shared(credential):
            raise Denied(403, f"token {credential.name}: is no one person's; `tabloop invite NAME` makes one that is")
        body = await read_json(request, MAX_BYTES)
        caller = gateway.access.caller(request.headers, credential, None, "")
        if (named := body.get("user")) != caller.user:
            raise BadRequest(
                f"user: expected {caller.user}, this token's own, got {str(named)[:40]!r}: load the page again", "user", 403
            )
        return await choose(gateway, caller.user, body)

    return chosen


async def _opt_out(gateway: Gateway, user: str, body: dict[str, Any]) -> Response:
    if not isinstance(wanted := body.get("opted_out"), bool):
        raise BadRequest(f"opted_out: expected true or false, got {str(wanted)[:40]!r}", "opted_out")
    try:
        await (gateway.choices.opt_out(user, gateway.clock()) if wanted else gateway.choices.opt_in(user))
    except AWAY as error:
        raise Unavailable(str(error)) from None
    return JSONResponse({"opted_out": gateway.choices.hold(user)})


async def _forget(gateway: Gateway, user: str, body: dict[str, Any]) -> Response:
    """Opt the user out, so that nothing new has text, and ask for the removal; a repeated request is the one that waits."""
    now = gateway.clock()
    try:
        await gateway.choices.opt_out(user, now)
        await gateway.choices.ask(choices.ask_to_forget, ErasureRequest(user=user, time=now))
    except AWAY as error:
        raise Unavailable(str(error)) from None
    gateway.recorder.forget_user(user)
    return JSONResponse(vars(await _standing(gateway, user, now)), 202)


async def _standing(gateway: Gateway, user: str, now: float) -> Standing:
    try:
        return await gateway.choices.ask(standing, user, now)
    except AWAY as error:
        raise Unavailable(str(error)) from None
