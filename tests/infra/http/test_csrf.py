"""Tokens of Prefect's server against forged requests."""

import httpx

from infra.http.csrf import CsrfTokens

TOKENS = ("expired", "fresh")


class Server:
    """Prefect's server, as it answers with the protection: a change needs a client's newest token."""

    def __init__(self, protected: bool = True) -> None:
        self.protected, self.given, self.asked = protected, iter(TOKENS), list[str]()
        self.valid = ""

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        assert request.headers["Authorization"] == "Basic x"
        if request.url.path == "/api/csrf-token":
            self.valid = next(self.given)
            return httpx.Response(200, json={"token": self.valid, "client": request.url.params["client"]})
        own = request.headers.get("Prefect-Csrf-Token"), request.headers.get("Prefect-Csrf-Client")
        if self.protected and request.method == "POST" and (own[0] != self.valid or not own[1]):
            return httpx.Response(403, json={"detail": "Missing CSRF token."})
        return httpx.Response(200, content=request.content)


def client(server: Server) -> httpx.Client:
    api = "http://prefect/api"
    return httpx.Client(
        base_url=api, headers={"Authorization": "Basic x"}, auth=CsrfTokens(api), transport=httpx.MockTransport(server.answer)
    )


def test_a_change_gets_a_token_when_the_server_asks_for_one_and_another_when_it_has_expired() -> None:
    server = Server()
    with client(server) as http:
        assert http.get("/flows").status_code == 200
        assert http.post("/flows", json={"name": "a"}).json() == {"name": "a"}
        assert http.post("/flows", json={"name": "b"}).json() == {"name": "b"}
        server.valid = "of a restarted server"
        assert http.post("/flows", json={"name": "c"}).json() == {"name": "c"}
    flows, token = "POST /api/flows", "GET /api/csrf-token"
    assert server.asked == ["GET /api/flows", flows, token, flows, flows, flows, token, flows]


def test_a_server_without_the_protection_and_another_refusal_are_left_as_they_are() -> None:
    server = Server(protected=False)
    with client(server) as http:
        assert http.post("/flows", json={}).status_code == 200
    assert server.asked == ["POST /api/flows"]
    forbids = httpx.MockTransport(lambda request: httpx.Response(403, json={"detail": "Unauthorized"}))
    with httpx.Client(base_url="http://prefect/api", auth=CsrfTokens("http://prefect/api"), transport=forbids) as http:
        assert http.post("/flows", json={}).json() == {"detail": "Unauthorized"}
