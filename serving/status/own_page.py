"""The own page of a developer, GET /me: what arrives with a token, what became of it, what is kept, and how an editor is set up.

It shows no version and no arm, since a developer who knew could decide an A/B test. It changes nothing, so that a browser may
send the token as a password.
"""

from pathlib import Path

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from infra.pages import charts
from serving.access import Denied
from serving.gateway.completions import Gateway
from serving.gateway.openapi import SECURITY, TEXT, Answers, DocumentedApp
from serving.status.own_values import own_page
from serving.status.routes import page_environment, security_headers

PATH = "/me"
PLACEHOLDER = "TOKEN"
"""Stands in the configurations where the browser has a session and no token."""
ANSWERS: Answers = {401: {"description": "the browser asks for a password", "content": {"text/plain": {"schema": TEXT}}}}


def add_own_page(app: DocumentedApp, gateway: Gateway) -> None:
    """Add the page."""
    source = (Path(__file__).parent / "own.html").read_text().replace("/* charts */", charts.STYLE)
    headers, template = security_headers(source), page_environment().from_string(source)

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
        address = str(request.base_url).rstrip("/")
        page = own_page(gateway, credential, caller, address, token, gateway.clock())
        return HTMLResponse(template.render(page=page), headers=headers)
