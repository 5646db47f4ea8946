"""Ten thousand malformed or hostile requests: no server error, no growth of memory, no lost event.

Bodies follow the schemas in each app's /openapi.json, with some values replaced, removed or added. Requests are sent as bytes:
cut, and with wrong lengths, methods, encodings and headers. A 5xx fails the test, and so does a missing response where one was
possible. The requests are then sent again, each by another client, to measure memory without hypothesis, which keeps its
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

BATCHES, BATCH, REPEATS, CONCURRENCY = 250, 10, 6_500, 16
MAX_GROWTH_BYTES = 24 << 20
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
UNUSUAL_VALUES = st.sampled_from(VALUES) | JSON
MUTATED_HEADERS = ("X-Project-ID", "X-User-ID", "Authorization", "api-key", "Content-Type", "X-Tabloop-Arm", "X-Tabloop-Version")
UNUSUAL_HEADER_VALUES = ("", "\x01", "a" * 9_000, "../..", "Basic x", "Basic é", "Bearer", "é", "champion", "2")
UNUSUAL_PATHS = ("/..", "/%00", "/" + "x" * 3_000, "?select_kind=" + "&" * 99, "?select_kind=line", "/")
REQUIRED = {"Host": "127.0.0.1", "Content-Type": "application/json"}
METHODS = ("POST",) * 12 + ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")


@dataclass(frozen=True)
class RawRequest:
    """One request."""

    app: int
    path: str
    raw: bytes


def valid_values(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a schema describes; covers the part of JSON Schema that the documents use."""
    if "examples" in schema:
        return st.sampled_from(schema["examples"])
    if "anyOf" in schema:
        return st.one_of(*(valid_values(choice) for choice in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    low, high = schema.get("minimum"), schema.get("maximum")
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {name: valid_values(field) for name, field in schema["properties"].items()}
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=fields)
        case "array":
            return st.lists(
                valid_values(schema["items"]), min_size=schema.get("minItems", 0), max_size=min(schema.get("maxItems", 3), 3)
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


def unusual_bodies(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the smallest body that a schema describes with each field replaced by each unusual value."""
    for choice in schema.get("anyOf", [schema]):
        smallest = _smallest(choice)
        for name, field in choice["properties"].items():
            inner = unusual_bodies(field) if "properties" in field else ()
            yield from ({**smallest, name: value} for value in (*VALUES, *inner))


def from_another_editor(request: RawRequest, number: int) -> RawRequest:
    """Return the request with another editor's User-Agent."""
    host = b"\r\nHost: 127.0.0.1\r\n"
    return replace(request, raw=request.raw.replace(host, host + b"User-Agent: editor%d\r\n" % number, 1))


def _smallest(schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return _smallest(schema["anyOf"][0])
    if chosen := schema.get("enum") or schema.get("examples"):
        return chosen[0]
    fields = {name: schema["properties"][name] for name in schema.get("required", ())}
    return {name: _smallest(field) for name, field in fields.items()} if fields else "x"


def post(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    headers = {**HEADERS, **REQUIRED, "Content-Length": str(len(content)), "Connection": "close"}
    return "\r\n".join([f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]).encode() + b"\r\n\r\n" + content


async def documented_routes(house: House) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return app, path and schema of every published POST route with a body; one of both apps counts for the second."""
    routes = {}
    for app, url in enumerate(house.urls):
        for path, methods in (await house.client.get(url + "/openapi.json")).json()["paths"].items():
            if body := methods.get("post", {}).get("requestBody"):
                routes[path] = (app, path, body["content"]["application/json"]["schema"])
    return list(routes.values())


@st.composite
def hostile_requests(draw: st.DrawFn, routes: list[tuple[int, str, st.SearchStrategy[Any]]]) -> RawRequest:
    """Return a request that is nearly valid."""
    app, path, bodies = draw(st.sampled_from(routes))
    body = draw(bodies)
    for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2)))):
        body = _mutated(draw, body)
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    headers = {**HEADERS, **REQUIRED}
    target = path
    match draw(st.integers(0, 15)):
        case 0:
            content = content[: draw(st.integers(0, len(content)))]
        case 1:
            position = draw(st.integers(0, len(content)))
            content = content[:position] + draw(st.binary(min_size=1, max_size=20)) + content[position:]
        case 2:
            content = b"[" * draw(st.sampled_from((10, 900, 50_000))) + content
        case 3 | 4:
            headers[draw(st.sampled_from(MUTATED_HEADERS))] = draw(st.sampled_from(UNUSUAL_HEADER_VALUES))
        case 5:
            target = path + draw(st.sampled_from(UNUSUAL_PATHS))
        case _:
            pass
    method = draw(st.sampled_from(METHODS))
    length = len(content) + draw(st.sampled_from((0,) * 12 + (-7, -len(content), -len(content) - 1)))
    headers |= {"Content-Length": str(max(length, -1)), "Connection": "close"}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return RawRequest(app, path, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content)


def _mutated(draw: st.DrawFn, body: Any) -> Any:
    """Return the body with one value replaced, removed or added, at any depth."""
    if not isinstance(body, dict) or not body:
        return draw(UNUSUAL_VALUES)
    name = draw(st.sampled_from(sorted(body)))
    match draw(st.integers(0, 4)):
        case 0:
            return {key: value for key, value in body.items() if key != name}
        case 1:
            return {**body, name: _mutated(draw, body[name])}
        case 2:
            return {**body, "x" * 500: draw(UNUSUAL_VALUES)}
        case _:
            return {**body, name: draw(UNUSUAL_VALUES)}


async def exchange(house: House, request: RawRequest) -> tuple[int, Any]:
    """Return status and JSON of the response; 0 if the server closed without one, as it may if the request never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[request.app].rsplit(":", 1)[1]))
    try:
        writer.write(request.raw)
        response = await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        response = b""
    finally:
        writer.close()
    if not response:
        return 0, None
    head, _, body = response.partition(b"\r\n\r\n")
    try:
        return int(head.split(b" ", 2)[1]), json.loads(body)
    except ValueError:
        return int(head.split(b" ", 2)[1]), None


async def test_ten_thousand_hostile_requests_cause_no_server_error(house: House) -> None:
    documented = await documented_routes(house)
    assert len(documented) == 13
    routes = [(app, path, valid_values(schema)) for app, path, schema in documented]
    requests = [RawRequest(app, path, post(path, body)) for app, path, schema in documented for body in unusual_bodies(schema)]
    loop, process = asyncio.get_running_loop(), psutil.Process()
    statuses, acknowledged, ids = Counter[int](), Counter[str](), list[str]()

    async def send(request: RawRequest) -> None:
        status, response = await exchange(house, request)
        assert status < 500, f"{status} to {request.raw[:2000]!r}"
        statuses[status] += 1
        if isinstance(response, dict) and response.get("status") in ("recorded", "submitted"):
            acknowledged[request.path] += 1
            ids.extend([response["id"]] if "id" in response else [])

    async def send_all(batch: list[RawRequest]) -> None:
        remaining = iter(batch)

        async def send_next() -> None:
            for request in remaining:
                await send(request)

        await asyncio.gather(*(send_next() for _ in range(CONCURRENCY)))

    @settings(max_examples=BATCHES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(hostile_requests(routes), min_size=BATCH, max_size=BATCH))
    def check(batch: list[RawRequest]) -> None:
        requests.extend(batch)
        asyncio.run_coroutine_threadsafe(send_all(batch), loop).result(60)

    await send_all(requests)
    await asyncio.to_thread(check)
    gc.collect()
    memory_before = process.memory_info().rss
    await send_all([from_another_editor(requests[number % len(requests)], number) for number in range(REPEATS)])
    gc.collect()
    assert process.memory_info().rss - memory_before < MAX_GROWTH_BYTES
    assert await house.ship() and house.spool.segments == house.spool.set_aside == 0
    rows = house.store.shipped("feedback")
    assert len(ids) > 20 and set(ids) <= {row.id for row in rows}
    clients = Counter(row.client for row in rows)
    assert 20 < acknowledged["/v1/continue/events"] <= clients["continue"]
    assert {200, 400, 401, 404, 405, 422} <= statuses.keys(), "the mutations reach every kind of response"
    assert statuses[0] < sum(statuses.values()) / 10 and (await house.complete()).status_code == 200


@pytest.mark.parametrize(
    ("path", "schema"),
    [("/v1/completions", openai.SCHEMA), ("/v1/completions", tabby.SCHEMA), ("/infill", llama.SCHEMA)],
    ids=["openai", "tabby", "llama"],
)
async def test_only_documented_bodies_get_a_completion(house: House, path: str, schema: Mapping[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    url = house.urls[0] + path
    strict_fields = sorted(schema["properties"].keys() - {"user", "stream_options"})  # these two accept any object

    def status(body: Any) -> int:
        return asyncio.run_coroutine_threadsafe(house.client.post(url, json=body), loop).result(20).status_code

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(valid_values(schema), st.sampled_from(strict_fields))
    def check(body: dict[str, Any], name: str) -> None:
        assert status(body) == 200
        assert status({**body, name: {"a": 1}}) == 400
        assert name not in schema["required"] or status({key: body[key] for key in body if key != name}) == 400

    await asyncio.to_thread(check)
