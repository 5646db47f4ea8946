"""Ten thousand malformed or hostile requests: no server error, no growth of memory, no lost event.

Bodies follow the schemas in each app's /openapi.json, with some values replaced, removed or added. Requests are sent as bytes:
cut, and with wrong lengths, methods, encodings and headers. A 5xx fails the test, and so does a missing response where one was
possible. The requests are then sent again, each by another client, to measure memory without hypothesis, which remembers its
examples.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gateway.dialects import llama, openai, tabby
from tests.serving.fakes import HEADERS, House

BATCHES, BATCH, AGAIN, AT_ONCE = 250, 10, 6_500, 16
MOST_GROWTH = 24 << 20
"""Bytes by which the process may grow while the requests are sent again."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**63, 10**30, 10**400, float("nan"), float("inf"), "", "\x00", "\ud800", "é" * 999, [], {}),
    *([[]] * 50, {"a": {"b": {"c": []}}}, "<|fim_middle|><|fim_prefix|>", "-----BEGIN RSA PRIVATE KEY-----", "' OR 1=1 --"),
)
ODD = st.sampled_from(VALUES) | JSON
HEADERS_MADE = ("X-Project-ID", "X-User-ID", "Authorization", "api-key", "Content-Type", "X-Tabloop-Arm", "X-Tabloop-Version")
ODD_HEADERS = ("", "\x01", "a" * 9_000, "../..", "Basic x", "Basic é", "Bearer", "é", "champion", "2")
ODD_PATHS = ("/..", "/%00", "/" + "x" * 3_000, "?select_kind=" + "&" * 99, "?select_kind=line", "/")
METHODS = ("POST",) * 12 + ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")


@dataclass(frozen=True)
class Sent:
    """One request."""

    app: int
    path: str
    raw: bytes


def described(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a schema describes; covers the part of the language that the documents use."""
    if "examples" in schema:
        return st.sampled_from(schema["examples"])
    if "anyOf" in schema:
        return st.one_of(*(described(choice) for choice in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    low, high = schema.get("minimum"), schema.get("maximum")
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {name: described(field) for name, field in schema["properties"].items()}
            needed = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=fields)
        case "array":
            return st.lists(
                described(schema["items"]), min_size=schema.get("minItems", 0), max_size=min(schema.get("maxItems", 3), 3)
            )
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 40), 40))
        case "integer":
            return st.integers(low, high)
        case "number":
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return JSON


def swept(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the smallest body that a schema describes with each field replaced by each odd value."""
    for choice in schema.get("anyOf", [schema]):
        least = _least(choice)
        for name, field in choice["properties"].items():
            inner = swept(field) if "properties" in field else ()
            yield from ({**least, name: value} for value in (*VALUES, *inner))


def by_another(sent: Sent, number: int) -> Sent:
    """Return the request with another editor's User-Agent."""
    host = b"\r\nHost: 127.0.0.1\r\n"
    return replace(sent, raw=sent.raw.replace(host, host + b"User-Agent: editor%d\r\n" % number, 1))


def _least(schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return _least(schema["anyOf"][0])
    if chosen := schema.get("enum") or schema.get("examples"):
        return chosen[0]
    fields = {name: schema["properties"][name] for name in schema.get("required", ())}
    return {name: _least(field) for name, field in fields.items()} if fields else "x"


def post(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    headers = {
        **HEADERS,
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
    }
    return "\r\n".join([f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]).encode() + b"\r\n\r\n" + content


async def documented(house: House) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return app, path and schema of every published POST route; a route of both apps counts for the second."""
    routes = {}
    for app, url in enumerate(house.urls):
        for path, methods in (await house.client.get(url + "/openapi.json")).json()["paths"].items():
            if "post" in methods:
                routes[path] = (app, path, methods["post"]["requestBody"]["content"]["application/json"]["schema"])
    return list(routes.values())


@st.composite
def hostile(draw: st.DrawFn, routes: list[tuple[int, str, st.SearchStrategy[Any]]]) -> Sent:
    """Return a request that is nearly valid."""
    app, path, bodies = draw(st.sampled_from(routes))
    body = draw(bodies)
    for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2)))):
        body = _changed(draw, body)
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    headers = {**HEADERS, "Host": "127.0.0.1", "Content-Type": "application/json"}
    target = path
    match draw(st.integers(0, 15)):
        case 0:
            content = content[: draw(st.integers(0, len(content)))]
        case 1:
            at = draw(st.integers(0, len(content)))
            content = content[:at] + draw(st.binary(min_size=1, max_size=20)) + content[at:]
        case 2:
            content = b"[" * draw(st.sampled_from((10, 900, 50_000))) + content
        case 3 | 4:
            headers[draw(st.sampled_from(HEADERS_MADE))] = draw(st.sampled_from(ODD_HEADERS))
        case 5:
            target = path + draw(st.sampled_from(ODD_PATHS))
        case _:
            pass
    method = draw(st.sampled_from(METHODS))
    length = len(content) + draw(st.sampled_from((0,) * 12 + (-7, -len(content), -len(content) - 1)))
    headers |= {"Content-Length": str(max(length, -1)), "Connection": "close"}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return Sent(app, path, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content)


def _changed(draw: st.DrawFn, body: Any) -> Any:
    """Return the body with one value replaced, removed or added, at any depth."""
    if not isinstance(body, dict) or not body:
        return draw(ODD)
    name = draw(st.sampled_from(sorted(body)))
    match draw(st.integers(0, 4)):
        case 0:
            return {key: value for key, value in body.items() if key != name}
        case 1:
            return {**body, name: _changed(draw, body[name])}
        case 2:
            return {**body, "x" * 500: draw(ODD)}
        case _:
            return {**body, name: draw(ODD)}


async def answer(house: House, sent: Sent) -> tuple[int, Any]:
    """Return status and JSON of the response; 0 if the server closed without one, as it may if the request never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[sent.app].rsplit(":", 1)[1]))
    try:
        writer.write(sent.raw)
        raw = await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        raw = b""
    finally:
        writer.close()
    if not raw:
        return 0, None
    head, _, body = raw.partition(b"\r\n\r\n")
    try:
        return int(head.split(b" ", 2)[1]), json.loads(body)
    except ValueError:
        return int(head.split(b" ", 2)[1]), None


async def test_ten_thousand_hostile_requests(house: House) -> None:
    published = await documented(house)
    assert len(published) == 6
    routes = [(app, path, described(schema)) for app, path, schema in published]
    requests = [Sent(app, path, post(path, body)) for app, path, schema in published for body in swept(schema)]
    loop, process = asyncio.get_running_loop(), psutil.Process()
    statuses, acknowledged, ids = Counter[int](), Counter[str](), list[str]()

    async def send(sent: Sent) -> None:
        status, response = await answer(house, sent)
        assert status < 500, f"{status} to {sent.raw[:2000]!r}"
        statuses[status] += 1
        if isinstance(response, dict) and response.get("status") in ("recorded", "submitted"):
            acknowledged[sent.path] += 1
            ids.extend([response["id"]] if "id" in response else [])

    async def send_all(batch: list[Sent]) -> None:
        waiting = iter(batch)

        async def some() -> None:
            for sent in waiting:
                await send(sent)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    @settings(max_examples=BATCHES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(hostile(routes), min_size=BATCH, max_size=BATCH))
    def check(batch: list[Sent]) -> None:
        requests.extend(batch)
        asyncio.run_coroutine_threadsafe(send_all(batch), loop).result(60)

    await send_all(requests)
    await asyncio.to_thread(check)
    gc.collect()
    before = process.memory_info().rss
    await send_all([by_another(requests[number % len(requests)], number) for number in range(AGAIN)])
    gc.collect()
    assert process.memory_info().rss - before < MOST_GROWTH
    assert await house.ship() and house.spool.segments == house.spool.set_aside == 0
    rows = house.store.shipped("feedback")
    assert len(ids) > 20 and set(ids) <= {row.id for row in rows}
    clients = Counter(row.client for row in rows)
    assert 20 < acknowledged["/v1/continue/events"] <= clients["continue"]
    assert {200, 400, 401, 404, 405, 422} <= statuses.keys(), "the mutations reach every kind of answer"
    assert statuses[0] < sum(statuses.values()) / 10 and (await house.complete()).status_code == 200


@pytest.mark.parametrize(
    ("path", "schema"),
    [("/v1/completions", openai.SCHEMA), ("/v1/completions", tabby.SCHEMA), ("/infill", llama.SCHEMA)],
    ids=["openai", "tabby", "llama"],
)
async def test_documented_bodies_get_a_completion_and_others_do_not(house: House, path: str, schema: Mapping[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    url, strict = house.urls[0] + path, sorted(schema["properties"].keys() - {"user", "stream_options"})  # take any object

    def status(body: Any) -> int:
        return asyncio.run_coroutine_threadsafe(house.client.post(url, json=body), loop).result(20).status_code

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(described(schema), st.sampled_from(strict))
    def check(body: dict[str, Any], name: str) -> None:
        assert status(body) == 200
        assert status({**body, name: {"a": 1}}) == 400
        assert name not in schema["required"] or status({key: body[key] for key in body if key != name}) == 400

    await asyncio.to_thread(check)
