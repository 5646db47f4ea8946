"""/openapi.json describes every answer: real answers of every route fit their schemas."""

import json
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from evals.docs.site import describe
from infra.settings import DEMO, load
from tests.serving.fakes import House
from tests.serving.gateway.test_feedback import DATA, RLINF_BODY, continue_event
from tests.serving.helpers import ADMINISTRATOR, CONTINUE, INFILL

BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "x = "}),
    ("/v1/completions", CONTINUE),
    ("/v1/completions", {"segments": {"prefix": "x = "}}),
    ("/infill", INFILL),
    ("/infill", INFILL | {"stream": True}),
    ("/infill", INFILL | {"n_predict": 0}),
    ("/infill", INFILL | {"response_fields": ["content", "timings/prompt_ms"]}),
    ("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}),
    ("/v1/continue/events", continue_event(DATA)),
    ("/v1/continue/events", {"name": "chatInteraction"}),
    ("/api/training/submit", RLINF_BODY),
    ("/v1/events", {"type": "view", "completion_id": "c"}),
)
WRONG: dict[str, Any] = {"prompt": 1, "outcome": "loved", "name": 3}


async def test_the_documentation_is_made_from_what_is_served(house: House) -> None:
    described = json.loads(json.dumps(await describe(load(DEMO, {}))))
    for number, port in enumerate(("completions", "feedback")):
        assert described[port] == await document(house, number)


async def document(house: House, app: int = 0) -> dict[str, Any]:
    return (await house.client.get(house.urls[app] + "/openapi.json")).json()


def check(described: dict[str, Any], answer: Any) -> None:
    """Fail unless status, content type and body are those of the description."""
    responses = described["responses"]
    content = responses.get(str(answer.status_code), responses["default"])["content"]
    media = answer.headers["content-type"].partition(";")[0]
    assert media in content, (answer.status_code, media)
    if media == "text/event-stream":
        events = answer.text.removesuffix("\n\n").split("\n\n")
        for name, _, data in (event.partition(": ") for event in events):
            OAS31Validator(content[media]["itemSchema"]).validate({name: data})
        return
    OAS31Validator(content[media]["schema"]).validate(answer.json() if media == "application/json" else answer.text)


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_answers_to_posts_fit_their_schemas(house: House, path: str, body: dict[str, Any]) -> None:
    operation = (await document(house))["paths"][path]["post"]
    url = house.urls[0] + path
    for headers in ({}, ADMINISTRATOR):
        answer = await house.client.post(url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        check(operation, answer)
    refusals = [
        await house.client.post(url, json=WRONG),
        await house.client.post(url, json=body, headers={"Authorization": ""}),
        await house.client.post(url, content=b"{}"),
        await house.client.post(url, json=body, headers={"Host": "evil.example"}),
    ]
    assert [answer.status_code for answer in refusals][1:] == [401, 415, 403] and refusals[0].status_code in (400, 422)
    for answer in refusals:
        check(operation, answer)


async def test_answers_to_gets_fit_their_schemas(house: House) -> None:
    for app, url in enumerate(house.urls):
        described = (await document(house, app))["paths"]
        paths = {path: operations["get"] for path, operations in described.items() if "get" in operations}
        assert set(paths) >= (
            {"/", "/health", "/ready", "/metrics", "/admin/status", "/v1/models"} if app == 0 else {"/health", "/ready"}
        )
        for path, operation in paths.items():
            for headers in (ADMINISTRATOR, {"Authorization": ""}):
                answer = await house.client.get(url + path, headers=headers)
                check(operation, answer)
                assert (answer.status_code == 401) == ("security" in operation and headers is not ADMINISTRATOR), path


async def test_an_app_that_is_not_ready_answers_as_described(house: House) -> None:
    for engine in house.engines:
        engine.up = False
    await house.follow()
    paths = (await document(house))["paths"]
    answers = [(paths["/ready"]["get"], await house.client.get(house.urls[0] + "/ready"))]
    answers += [(paths["/v1/completions"]["post"], await house.complete())]
    for operation, answer in answers:
        assert answer.status_code == 503
        check(operation, answer)


async def test_every_route_that_takes_a_token_says_so(house: House) -> None:
    described = await document(house)
    assert set(described["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    is_open = {path for path, operations in described["paths"].items() for each in operations.values() if "security" not in each}
    assert is_open == {"/health", "/ready", "/v1/health"}
