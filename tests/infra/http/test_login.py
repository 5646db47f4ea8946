"""What a login link opens in a real browser, and that a server on another port of this machine gets nothing from it."""

import contextlib
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.http import login
from tests.infra import browser
from tests.infra.attacks import serving
from tests.infra.served import running

CREDENTIAL = "tabloop:secret"


class Listener(BaseHTTPRequestHandler):
    """Another user's server: it notes what browsers send it."""

    seen: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        """Answer with a page."""
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(401 if self.path == "/challenge" else 200)
        if self.path == "/challenge":  # a server that asks for the password by the same name
            self.send_header("WWW-Authenticate", 'Basic realm="tabloop", charset="UTF-8"')
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def guarded() -> Iterator[tuple[str, list[dict[bytes, bytes]]]]:
    """The address of a server behind the authentication proxy, and the headers of each request that it passed on."""
    admitted: list[dict[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        admitted.append(dict(scope["headers"]))
        headers = [(b"content-type", b"text/html"), (b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"inside"})

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running(app, address, CREDENTIAL, sockets=[listener]):
            yield address, admitted


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    class Handler(Listener):
        seen = []  # noqa: RUF012 - of this server alone

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}", Handler.seen


def under_a_path(address: str) -> type[BaseHTTPRequestHandler]:
    """Return the handler of a proxy that serves an address under /tabloop, and takes that path off."""

    class Proxy(Listener):
        def do_GET(self) -> None:
            """Pass a request on."""
            if not self.path.startswith("/tabloop/"):
                return self.send_error(404)
            sent = {name: self.headers[name] for name in ("Authorization", login.CODE_HEADER) if name in self.headers}
            answer = httpx.request(self.command, address + self.path.removeprefix("/tabloop"), headers=sent)
            self.send_response(answer.status_code)
            for name in ("Content-Type", "Content-Length", "Content-Security-Policy", "WWW-Authenticate"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

    return Proxy


def test_a_browser_logs_in_by_the_link_and_another_port_gets_nothing(guarded: tuple[str, Any], tmp_path: Path) -> None:
    program = browser.required()
    address, admitted = guarded
    link = login.link(address, CREDENTIAL)
    with browser.running(program, tmp_path / "profile") as victim, listening() as (other, seen):
        tab = victim.open(link)
        victim.until(tab, "document.body.innerText == 'inside' && location.search == '' && location.hash == ''")
        assert victim.evaluate(tab, "fetch('/again').then(answer => answer.text())") == "inside", "it stays logged in"
        let_in = len(admitted)
        lured = victim.open(f"{other}/")
        victim.until(lured, "document.body.innerText == 'hi'")
        victim.evaluate(lured, "fetch('/page', {credentials: 'include'}).then(() => 1)")
        victim.evaluate(lured, "void fetch('/challenge')")  # the browser asks for a password, so it never ends
        browser.wait(lambda: "/challenge" in {path for path, _ in seen}, lambda: str(seen))
        crossing = f"fetch('{address}/read', {{credentials: 'include', mode: 'no-cors'}}).then(() => 1, () => 2)"
        assert victim.evaluate(lured, crossing)
        assert {path for path, _ in seen} >= {"/", "/page"}
        assert not [headers for _, headers in seen if {"authorization", "cookie"} & set(headers)]
        assert len(admitted) == let_in, "its page reads nothing either"
        again = victim.open(link)
        victim.until(again, "document.body.innerText.includes('has been used')")


@pytest.mark.parametrize(
    ("page", "path"), [("/inner?a=1#/models/2", "/inner?a=1#/models/2"), ("//elsewhere.example/x", "//elsewhere.example/x")]
)
def test_a_link_leads_to_a_page_of_its_own_server(guarded: tuple[str, Any], tmp_path: Path, page: str, path: str) -> None:
    program = browser.required()
    address, _ = guarded
    with browser.running(program, tmp_path / "profile") as running_browser:
        tab = running_browser.open(login.link(address, CREDENTIAL, page))
        running_browser.until(tab, f"document.body.innerText == 'inside' && location.href == {address + path!r}")


def test_a_link_works_under_the_path_of_a_proxy(guarded: tuple[str, Any], tmp_path: Path) -> None:
    program = browser.required()
    address, _ = guarded
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), under_a_path(address))
    with serving(proxy) as port, browser.running(program, tmp_path / "profile") as running_browser:
        root = f"http://127.0.0.1:{port}/tabloop"
        tab = running_browser.open(login.link(root, CREDENTIAL, "/inner?a=1"))
        running_browser.until(tab, f"document.body.innerText == 'inside' && location.href == {root + '/inner?a=1'!r}")
