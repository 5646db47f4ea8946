"""A client of Prefect's API, and what its errors mean for the settings."""

import re

import httpx

from infra.http import authorization
from infra.http.csrf import CsrfTokens
from infra.settings import Settings, masked


class DeployError(RuntimeError):
    """Prefect's server does not take what is deployed; the message says what to change."""


class NoAnswer(DeployError):
    """Prefect's server does not answer."""


def connect(settings: Settings) -> httpx.Client:
    """Return a client of Prefect's API with its credential; another server's page is an error of transport."""
    orchestration = settings.orchestration
    headers, hooks = authorization.of_prefect(orchestration), {"response": [_refuse_pages]}
    auth = CsrfTokens(orchestration.api)
    return httpx.Client(base_url=orchestration.api, headers=headers, auth=auth, timeout=60, event_hooks=hooks)


def _refuse_pages(response: httpx.Response) -> None:
    kind = response.headers.get("content-type", "application/json").partition(";")[0]
    if response.is_success and kind != "application/json":
        raise httpx.RemoteProtocolError(f"it has {kind}, expected Prefect's JSON: another server or a proxy answers there")


def explained(settings: Settings, error: httpx.HTTPError) -> DeployError:
    """Return the error of a request with the setting that it concerns."""
    api = f"orchestration.api = {masked(settings.orchestration.api)!r}"
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
    if status in (401, 403):
        return DeployError(
            f"{api}: HTTP {status}: orchestration.auth_string is not the server's PREFECT_SERVER_API_AUTH_STRING; expected "
            '"USER:PASSWORD" in TABLOOP_ORCHESTRATION__AUTH_STRING'
        )
    if status in (404, 405):
        return DeployError(f"{api}: HTTP {status}: expected the URL of Prefect's API, which ends in /api")
    if status:
        return DeployError(f"{api}: HTTP {status}: {error}")
    return NoAnswer(
        f"{api}: no response of Prefect: {error or type(error).__name__}; start Prefect's server, or correct the setting; "
        "`tabloop status` shows the local one"
    )


def placeholders(text: str) -> list[str]:
    """Return the names in the placeholders {{ NAME }} of a text."""
    return re.findall(r"{{\s*([^}\s]+)\s*}}", text)
