"""The authentication proxy of Prefect and MLflow: it admits the server's own clients, and refuses requests of other pages."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.http import login
from infra.http.authorization import basic
from infra.http.login import CODE_HEADER, LINK_SECONDS, SESSION_SECONDS, Logins
from infra.http.web import foreign, own_names
from infra.stack.auth_proxy import AuthProxy

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
            await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"SAMEORIGIN")]})
            await send({"type": "http.response.body", "body": b"inside"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http(app: App, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=AuthProxy(app, ADDRESS, CREDENTIAL, clock))
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
        yield client


@pytest.mark.parametrize("sent", [AUTHORIZED, {"Authorization": "Bearer secret"}, {**AUTHORIZED, "Origin": ADDRESS}], ids=str)
async def test_own_clients_come_in(http: httpx.AsyncClient, app: App, sent: dict[str, str]) -> None:
    answer = await http.post("/api/runs", headers=sent)
    assert answer.text == "inside" and answer.headers.get_list("x-frame-options") == ["DENY"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert (b"authorization", AUTHORIZED["Authorization"].encode()) in app.scopes[0]["headers"]


@pytest.mark.parametrize(
    "sent", ["", "Basic", "Basic é", basic("tabloop:secre"), basic("other:secret"), "Bearer tabloop:secret", "Bearer "], ids=repr
)
async def test_without_the_credential_nothing_is_shown(http: httpx.AsyncClient, app: App, sent: str) -> None:
    for path in ("/", "/health", "/api/health", "/static/x.js"):
        answer = await http.get(path, headers={b"Authorization": sent.encode()})
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


def handshake(**changed: str) -> list[tuple[bytes, bytes]]:
    """The headers of a WebSocket of the server's own client."""
    headers = {"host": "127.0.0.1:4200", "authorization": AUTHORIZED["Authorization"], **changed}
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize("changed", [{"host": "rebound.example"}, {"origin": "http://evil"}, {"authorization": ""}], ids=str)
async def test_a_socket_of_another_page_or_without_the_credential_is_closed(app: App, changed: dict[str, str]) -> None:
    messages: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the handshake has no message")

    async def send(message: Any) -> None:
        messages.append(message)

    proxy = AuthProxy(app, ADDRESS, CREDENTIAL)
    await proxy({"type": "websocket", "path": "/api/events/out", "headers": handshake(**changed)}, receive, send)
    assert [message["type"] for message in messages] == ["websocket.close"] and app.scopes == []
    await proxy({"type": "websocket", "path": "/api/events/out", "headers": handshake()}, receive, send)
    assert len(messages) == 1 and len(app.scopes) == 1


async def exchange(http: httpx.AsyncClient, code: str) -> httpx.Response:
    """Do what the page of a login link does first."""
    return await http.post("/?login", headers={CODE_HEADER.encode(): code.encode()})


async def test_a_login_link_opens_one_session_for_some_hours(http: httpx.AsyncClient, app: App, clock: Clock) -> None:
    code = login.code(CREDENTIAL, clock.now)
    clock.now += LINK_SECONDS
    page = await http.get("/?login")
    assert page.status_code == 200 and "script-src 'sha256-" in page.headers["content-security-policy"]
    answer = await exchange(http, code)
    assert answer.status_code == 200 and not answer.cookies and answer.headers["cache-control"] == "no-store"
    session = {"Authorization": basic(f"session:{answer.text}")}
    assert (await http.get("/", headers=session)).text == "inside"
    assert (b"authorization", AUTHORIZED["Authorization"].encode()) in app.scopes[0]["headers"], "the app gets its own credential"
    again = await exchange(http, code)
    assert again.status_code == 403 and "has been used" in again.text, "once"
    clock.now += SESSION_SECONDS
    assert (await http.get("/", headers=session)).status_code == 401


async def test_a_login_link_expires(http: httpx.AsyncClient, clock: Clock) -> None:
    code = login.code(CREDENTIAL, clock.now)
    clock.now += LINK_SECONDS + 1
    assert "has expired" in (await exchange(http, code)).text


def test_codes_and_sessions_end_with_the_process_that_took_the_port_before() -> None:
    clock = Clock()
    code, before = login.code(CREDENTIAL, clock.now - 1), Logins(CREDENTIAL, lambda: clock.now - 1)
    session = before.answer("POST", code).body
    assert before.admits(session)
    after = Logins(CREDENTIAL, clock)
    assert not after.admits(session) and after.answer("POST", code).status == 403


MADE_UP = ["", ".", "x", "9999999999.", "¹.2", '"', "9" * 5_000, "9" * 5_000 + "." + "0" * 64, "é.ü", "-1.x", "\x00"]


@pytest.mark.parametrize("value", MADE_UP, ids=lambda value: repr(value)[:20])
async def test_a_made_up_code_or_session_is_none(http: httpx.AsyncClient, app: App, value: str) -> None:
    assert (await exchange(http, value)).status_code == 403
    for sent in (basic(f"session:{value}"), f"Basic {value}", f"Bearer {value}"):
        assert (await http.get("/", headers={b"Authorization": sent.encode()})).status_code == 401
    assert (await http.get("/", headers={b"Cookie": f"tabloop_session_4200={value}".encode()})).status_code == 401
    assert app.scopes == []


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=60))
async def test_no_header_breaks_the_proxy(value: bytes, other: bytes, query: bytes) -> None:
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def nothing() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    for method in ("GET", "POST"):
        for host in (b"127.0.0.1:4200", other):
            headers = [
                (b"host", host),
                (b"authorization", value),
                (b"cookie", other),
                (b"x-login-code", value),
                (b"origin", other),
            ]
            for given_headers in (headers, headers[:-1]):
                scope = {"type": "http", "method": method, "path": "/", "query_string": query, "headers": given_headers}
                await AuthProxy(App(), ADDRESS, CREDENTIAL)(scope, nothing, send)
                scope["query_string"] = b"login"
                await AuthProxy(App(), ADDRESS, CREDENTIAL)(scope, nothing, send)
    assert set(statuses) <= {200, 401, 403} and len(statuses) == 16


def test_a_link_holds_no_credential_and_sends_its_code_to_nobody() -> None:
    link = login.link(ADDRESS + "/", CREDENTIAL)
    assert link.startswith(f"{ADDRESS}/?login#") and "secret" not in link
