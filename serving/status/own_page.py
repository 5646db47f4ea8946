"""The own page of a developer, GET /me: what arrives with a token, what became of it, what is kept, and how an editor is set up.

It shows no version and no arm, since a developer who knew could decide an A/B test. It changes nothing, so that a browser may
send the token as a password; what its buttons ask for, own_choices.py takes.
"""

import asyncio
import re

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from serving.access import Denied
from serving.gateway.completions import Gateway
from serving.gateway.openapi import SECURITY, TEXT, Answers, DocumentedApp
from serving.status.data import WAIT_SECONDS
from serving.status.own_choices import AWAY, Standing, add_own_choices, standing
from serving.status.own_values import own_page
from serving.status.routes import page_source, page_template, security_headers

PATH = "/me"
UNKNOWN = Standing("unknown", "the object store does not answer, so it is not known whether you asked to be forgotten")
PLACEHOLDER = "TOKEN"
"""Stands in the configurations where the browser has a session and no token."""
SCHEMES = ("http", "https")
PREFIX = re.compile(r"(?:/[\w.~-]+)*", re.ASCII)
"""The path under which a proxy serves the app."""
ANSWERS: Answers = {401: {"description": "the browser asks for a password", "content": {"text/plain": {"schema": TEXT}}}}


def add_own_page(app: DocumentedApp, gateway: Gateway) -> None:
    """Add the page, and what its buttons ask for."""
    headers, template = security_headers(page_source("own.html")), page_template("own.html")
    add_own_choices(app, gateway, headers)

    @app.get(PATH, response_class=HTMLResponse, responses=ANSWERS, openapi_extra=SECURITY)
    async def me(request: Request) -> Response:
        try:
            credential = await gateway.access.check(request.headers, "complete", password=True)
        except Denied as denied:
            if denied.status != 401:
                raise
            # A browser then asks for a user name, which is ignored, and a password: the token.
            text = f"{denied}. In a browser: any user name, and your token as the password; `tabloop invite NAME` makes one\n"
            return PlainTextResponse(text, 401, headers | {"WWW-Authenticate": 'Basic realm="tabloop developer"'})
        caller = gateway.access.caller(request.headers, credential, None, "")
        token = gateway.access.token_of(request.headers) or PLACEHOLDER
        address = _address(request)
        now = gateway.clock()
        page = own_page(gateway, credential, caller, address, token, now)
        asked = await _standing(gateway, caller.user, now)
        return HTMLResponse(template.render(page=page, forgetting=asked), headers=headers)


def _address(request: Request) -> str:
    """Return the address by which the browser came: a proxy names the scheme if it ends TLS, and the path if it takes one off."""
    proto, path = (request.headers.get(f"X-Forwarded-{name}", "").partition(",")[0].strip() for name in ("Proto", "Prefix"))
    scheme = proto.lower() if proto.lower() in SCHEMES else request.base_url.scheme
    path = path.rstrip("/")
    return str(request.base_url.replace(scheme=scheme)).rstrip("/") + (path if PREFIX.fullmatch(path) else "")


async def _standing(gateway: Gateway, user: str, now: float) -> Standing:
    """Return how the user's removal stands; the page does not wait long for the object store."""
    try:
        return await asyncio.wait_for(gateway.choices.ask(standing, user, now), WAIT_SECONDS)
    except (TimeoutError, *AWAY):
        return UNKNOWN
