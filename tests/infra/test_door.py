"""The door in front of Prefect and MLflow: it lets in the server's own clients, and refuses what a browser sends for a page."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.authorization import basic
from infra.stack.door import LINK_SECONDS, SESSION_SECONDS, Door, login_code, login_link
from infra.web import foreign, own_names

ADDRESS, CREDENTIAL = "http://127.0.0.1:4200", "tabloop:secret"
AUTHORIZED = {"Authorization": basic(CREDENTIAL)}


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class App:
    """A server that answers everything, and notes what came through."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"DENY")]})
            await send({"type": "http.response.body", "body": b"inside"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http(app: App, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Door(app, ADDRESS, CREDENTIAL, clock))
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
        yield client


@pytest.mark.parametrize("sent", [AUTHORIZED, {"Authorization": "Bearer secret"}, {**AUTHORIZED, "Origin": ADDRESS}], ids=str)
async def test_own_clients_come_in(http: httpx.AsyncClient, app: App, sent: dict[str, str]) -> None:
    answer = await http.post("/api/runs", headers=sent)
    assert answer.text == "inside" and answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (b"authorization", AUTHORIZED["Authorization"].encode()) in app.scopes[0]["headers"]


@pytest.mark.parametrize(
    "sent", ["", "Basic", "Basic é", basic("tabloop:secre"), basic("other:secret"), "Bearer tabloop:secret", "Bearer "], ids=repr
)
async def test_without_the_credential_nothing_is_told(http: httpx.AsyncClient, app: App, sent: str) -> None:
    for path in ("/", "/health", "/api/health", "/static/x.js"):
        answer = await http.get(path, headers={"Authorization": sent.encode()})
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic ")
    assert app.scopes == []


@pytest.mark.parametrize(
    "sent",
    [
        {"Host": "rebound.example:4200"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_pages_of_others_are_refused_even_with_the_credential(
    http: httpx.AsyncClient, app: App, sent: dict[str, str], method: str
) -> None:
    answer = await http.request(method, "/api/runs", headers={**AUTHORIZED, **sent})
    assert answer.status_code == 403 and app.scopes == []
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_link_on_another_page_may_be_followed_but_not_posted(http: httpx.AsyncClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await http.get("/runs", headers={**AUTHORIZED, **link})).status_code == 200
    assert (await http.post("/runs", headers={**AUTHORIZED, **link})).status_code == 403


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126)))
def test_no_other_name_is_this_server(host: str) -> None:
    named = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.lower()
    refused = foreign([(b"host", host.encode())], "GET", own_names(ADDRESS)) is not None
    assert refused == (named not in ("127.0.0.1", "localhost", "[::1]"))


def test_two_hosts_are_none() -> None:
    assert foreign([(b"host", b"127.0.0.1"), (b"host", b"evil.example")], "GET", own_names(ADDRESS))
    assert foreign([(b"host", b"local"), (b"host", b"host")], "GET", own_names("http://localhost:1"))
    assert foreign([], "GET", own_names(ADDRESS))


@pytest.mark.parametrize("sent", [[(b"host", b"rebound.example")], [(b"host", b"127.0.0.1:4200"), (b"origin", b"http://evil")]])
async def test_a_socket_of_another_page_is_closed(app: App, sent: list[tuple[bytes, bytes]]) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await Door(app, ADDRESS, CREDENTIAL)({"type": "websocket", "path": "/api/events/out", "headers": sent}, None, send)
    assert [message["type"] for message in messages] == ["websocket.close"] and app.scopes == []


async def test_a_login_link_opens_a_session_for_some_hours(http: httpx.AsyncClient, app: App, clock: Clock) -> None:
    path = f"/?login={login_code(CREDENTIAL, clock.now)}"
    clock.now += LINK_SECONDS
    answer = await http.get(path)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "secret" not in cookie
    assert (await http.get("/")).text == "inside"
    assert (b"authorization", AUTHORIZED["Authorization"].encode()) in app.scopes[0]["headers"]
    clock.now += LINK_SECONDS
    assert (await http.get(path)).status_code == 403
    clock.now += SESSION_SECONDS
    http.cookies.clear()
    assert (await http.get("/", headers={"Cookie": cookie.partition(";")[0]})).status_code == 401


@pytest.mark.parametrize("value", ["x", "9999999999.", "9999999999.0", "¹.2", '"', "9999999999." + login_code(CREDENTIAL, 0)])
async def test_a_made_up_session_is_none(http: httpx.AsyncClient, value: str) -> None:
    answer = await http.get("/", headers={"Cookie": f"tabloop_session_4200={value}".encode()})
    assert answer.status_code == 401


def test_a_link_holds_no_credential() -> None:
    assert login_link(ADDRESS + "/", CREDENTIAL).startswith(f"{ADDRESS}/?login=") and "secret" not in login_link(
        ADDRESS, CREDENTIAL
    )
