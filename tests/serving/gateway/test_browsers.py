"""What a page of another site makes a developer's browser send changes nothing and gets nothing."""

import asyncio
import base64
import hashlib
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.http.web import host_name
from infra.settings.schema import Serving
from serving.gateway.browsers import accepted_hosts
from serving.status.by_hand import KINDS
from tests.serving.fakes import ADMIN, House
from tests.serving.helpers import ADMINISTRATOR, AN_EDITOR

EVENT = {"completion_id": "c", "outcome": "accepted"}
PASSWORD = {"Authorization": "Basic " + base64.b64encode(f"me:{ADMIN}".encode()).decode()}
FOREIGN_HOSTS = ("evil.example", "evil.example:8081", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "10.0.0.1")
GETS = (
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/admin/status",
    "/openapi.json",
    "/v1/models",
    "/v1/health",
    "/me",
    "/no-such-route",
)
PIECES = ("localhost", "127.0.0.1", "[::1]", "evil.example", ":", "@", "/", "?", "#", "\\", "%", ".", " ", "\t", "8081", "[", "]")
"""Of Host headers."""
METHODS = (
    ("GET", "/v1/completions", "POST"),
    ("PUT", "/v1/feedback", "POST"),
    ("DELETE", "/health", "GET"),
    ("POST", "/ready", "GET"),
)
POSTS = ("/v1/completions", "/infill", "/v1/feedback", "/v1/continue/events", "/api/training/submit", "/v1/events")


async def test_a_browsers_password_opens_no_route_that_changes_something(house: House) -> None:
    for url, paths in zip(house.urls, ((*POSTS, *KINDS), POSTS[2:]), strict=True):
        for path in paths:
            answer = await house.client.post(url + path, json=EVENT, headers=PASSWORD)
            # No browser asks for a password by this challenge.
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert house.rows("completions") == house.rows("feedback") == []


@pytest.mark.parametrize("declared", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"])
async def test_a_body_must_be_declared_as_json(house: House, declared: str) -> None:
    headers = {**AN_EDITOR, **({"Content-Type": declared} if declared else {})}
    for path in POSTS:
        answer = await house.client.post(house.urls[0] + path, content=b'{"prompt": "x"}', headers=headers)
        assert answer.status_code == 415 and "application/json" in answer.json()["error"]["message"]


async def test_a_charset_may_stand_in_the_content_type(house: House) -> None:
    headers = {**AN_EDITOR, "Content-Type": "Application/JSON; charset=utf-8"}
    body = b'{"completion_id": "c", "outcome": "shown"}'
    answer = await house.client.post(house.urls[0] + "/v1/feedback", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_rebound_name_gets_nothing(house: House, host: str) -> None:
    for path in GETS:
        answer = await house.client.get(house.urls[0] + path, headers={**ADMINISTRATOR, "Host": host})
        assert answer.status_code == 403 and "serving.hosts" in answer.json()["error"]["message"]
    assert b'tabloop_refused_total{status="403"} %d.0' % len(GETS) in house.metrics_text()
    for url in house.urls:
        answer = await house.client.post(url + "/v1/feedback", json=EVENT, headers={"Host": host})
        assert answer.status_code == 403
    assert house.rows("feedback") == []


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1:8081", "[::1]:8081", "[::1]", "tabloop.example"])
def test_the_apps_own_names_are_accepted(name: str) -> None:
    assert host_name(name) in accepted_hosts(Serving(hosts=("Tabloop.Example",)))


@pytest.mark.parametrize(
    "value", ["", "a:b", "a@localhost", "localhost/x", "localhost:1:2", "[::1", "localhost[::1]", "localhost#", "http://x"]
)
def test_what_is_no_host_has_no_name(value: str) -> None:
    assert host_name(value) == ""


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join))
def test_only_an_own_name_with_at_most_a_port_is_accepted(value: str) -> None:
    if host_name(value) in accepted_hosts(Serving(host="localhost")):
        own = "|".join(re.escape(name) for name in ("localhost", "127.0.0.1", "[::1]", socket.gethostname().lower()))
        assert re.fullmatch(rf"({own})(:\d*)?", value.lower()), value


def test_an_app_on_all_addresses_is_not_named_so() -> None:
    assert not {"0.0.0.0", "::"} & accepted_hosts(Serving(host="0.0.0.0"))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://[", "file://"])
async def test_a_page_of_another_origin_changes_nothing(house: House, origin: str) -> None:
    for path in POSTS:
        answer = await house.client.post(house.urls[0] + path, json={"prompt": "x", **EVENT}, headers={"Origin": origin})
        assert answer.status_code == 403 and "Origin" in answer.json()["error"]["message"]
    assert house.rows("completions") == house.rows("feedback") == []
    own = {"Origin": house.urls[0]}
    assert (await house.client.post(house.urls[0] + "/v1/feedback", json=EVENT, headers=own)).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("localhost:443", "https://localhost", True),
        ("localhost:80", "http://localhost", True),
        ("localhost", "https://localhost", True),
        ("localhost:80", "https://localhost", False),
        ("localhost:443", "http://localhost", False),
        ("localhost:443", "https://localhost:8443", False),
        ("localhost:443", "https://evil.example", False),
        ("localhost:443", "ftp://localhost", False),
    ],
)
async def test_a_proxy_may_name_the_port_that_a_browser_leaves_out(house: House, host: str, origin: str, own: bool) -> None:
    headers = {"Host": host, "Origin": origin}
    answer = await house.client.post(house.urls[0] + "/v1/feedback", json=EVENT, headers=headers)
    assert answer.status_code == (200 if own else 403)


async def test_no_answer_lets_another_origin_read_it(house: House) -> None:
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for url in house.urls:
        answers = [
            await house.client.options(url + "/v1/feedback", headers=asks),
            await house.client.get(url + "/health", headers=asks),
            await house.client.post(url + "/v1/feedback", json=EVENT, headers=asks),
        ]
        assert [answer.status_code for answer in answers] == [403] * 3
        assert not [name for answer in answers for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_what_a_browser_sends_for_another_sites_page_gets_nothing_but_a_link_works(house: House, site: str) -> None:
    for path in GETS:
        image = {**PASSWORD, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        answer = await house.client.get(house.urls[0] + path, headers=image)
        assert answer.status_code == 403 and "Sec-Fetch-Site" in answer.json()["error"]["message"]
    link = {**PASSWORD, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await house.client.get(house.urls[0] + "/", headers=link)).status_code == 200
    assert (await house.client.post(house.urls[0] + "/v1/feedback", json=EVENT, headers=link)).status_code == 403


@pytest.mark.parametrize("hosts", [("local", "host"), ("127.0.0.1", "127.0.0.1"), ()], ids=["split", "twice", "none"])
async def test_a_request_names_one_host(house: House, hosts: tuple[str, ...]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[0].rsplit(":", 1)[1]))
    writer.write("".join(["GET /health HTTP/1.1\r\n", *(f"Host: {host}\r\n" for host in hosts), "\r\n"]).encode())
    assert (await reader.readline()).split()[1] in (b"400", b"403")
    writer.close()


async def test_the_page_may_run_its_own_script_alone_and_be_framed_by_nobody(house: House) -> None:
    for headers, status in ((PASSWORD, 200), ({"Authorization": ""}, 401)):
        answer = await house.client.get(house.urls[0] + "/", headers=headers)
        assert answer.status_code == status
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert {policy[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer" and answer.headers["cache-control"] == "no-store"
        if status == 200:
            (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
            assert policy["style-src"] == f"'sha256-{digest}'", "the page's own alone"
            assert policy["script-src"] == policy["connect-src"] == "'self'" and " style=" not in answer.text
            assert re.findall(r"<script[^>]*>", answer.text) == ['<script src="status.js" defer>']
            script = await house.client.get(house.urls[0] + "/status.js", headers=headers)
            assert script.status_code == 200 and script.headers["content-type"].startswith("text/javascript")
            kept = r"<form|\son[a-z]+=|innerHTML|localStorage|sessionStorage|document\.cookie|\beval\b"
            assert not re.search(kept, answer.text + script.text)


@pytest.mark.parametrize("path", ["/metrics", "/admin/status"])
async def test_what_the_page_links_to_is_no_page_either(house: House, path: str) -> None:
    answer = await house.client.get(house.urls[0] + path, headers=PASSWORD)
    assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"


async def test_a_head_is_answered_as_a_get_without_its_body(house: House) -> None:
    for url, paths in zip(house.urls, (GETS, ("/health", "/ready", "/no-such-route")), strict=True):
        for path in paths:
            got, head = [await house.client.request(method, url + path, headers=PASSWORD) for method in ("GET", "HEAD")]
            assert head.status_code == got.status_code and head.content == b"", path
            assert head.headers.get("content-type") == got.headers.get("content-type")
    assert (await house.client.head(house.urls[0] + "/v1/completions")).status_code == 405
    house.drain.began = True
    assert (await house.client.head(house.urls[1] + "/ready")).status_code == 503


@pytest.mark.parametrize(("method", "path", "allowed"), METHODS)
async def test_a_wrong_method_is_answered_with_the_allowed_ones(house: House, method: str, path: str, allowed: str) -> None:
    answer = await house.client.request(method, house.urls[0] + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
