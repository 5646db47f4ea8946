"""Tokens against forged requests, which Prefect's server asks for with PREFECT_SERVER_CSRF_PROTECTION_ENABLED."""

import uuid
from collections.abc import Generator
from http.client import FORBIDDEN, OK

import httpx


class CsrfTokens(httpx.Auth):
    """Gives a request its token, once the server has refused one without: a server that asks for none is not asked."""

    requires_response_body = True

    def __init__(self, api: str) -> None:
        self._url, self._client, self._token = f"{api.rstrip('/')}/csrf-token", uuid.uuid4().hex, ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send a request; get a token and send it again where none, or one that has expired, is the reason of a refusal."""
        self._sign(request)
        response = yield request
        if response.status_code != FORBIDDEN or b"CSRF" not in response.content:
            return
        headers = {"Authorization": request.headers["Authorization"]} if "Authorization" in request.headers else {}
        answer = yield httpx.Request("GET", self._url, params={"client": self._client}, headers=headers)
        if answer.status_code == OK:
            self._token = answer.json()["token"]
            self._sign(request)
            yield request

    def _sign(self, request: httpx.Request) -> None:
        if self._token:
            request.headers.update({"Prefect-Csrf-Token": self._token, "Prefect-Csrf-Client": self._client})
