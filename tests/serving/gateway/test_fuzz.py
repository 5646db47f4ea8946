"""Requests made from /openapi.json by schemathesis: no server error, and no answer that the document does not describe."""

import asyncio
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.fakes import HEADERS, House
from tests.serving.helpers import ADMINISTRATOR

CASES = 120
"""Of each port, by each way of making them, in equal parts for its operations."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as_described", "otherwise"])
@pytest.mark.parametrize("port", [0, 1], ids=["completions", "feedback"])
async def test_every_answer_is_described(house: House, port: int, mode: GenerationMode) -> None:
    url = house.urls[port]
    document = (await house.client.get(url + "/openapi.json")).json()
    operations = [cast(Any, result).ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    posts = [operation for operation in operations if operation.method == "post"]
    chosen = operations if mode is GenerationMode.POSITIVE else posts  # only bodies can differ from what is described
    seen = set[tuple[str, int]]()
    session = requests.Session()

    of_each = settings(
        max_examples=CASES // len(chosen), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )

    def check(operation: schemathesis.APIOperation) -> None:
        @of_each
        @given(operation.as_strategy(mode), st.sampled_from((HEADERS, HEADERS, ADMINISTRATOR, {})))
        def send(case: schemathesis.Case, headers: dict[str, str]) -> None:
            response = case.call(base_url=url, session=session, headers=headers)
            case.validate_response(response, checks=CHECKS)
            seen.add((case.operation.path, response.status_code))

        send()

    with session:
        for operation in chosen:
            await asyncio.to_thread(check, operation)
    assert {path for path, _ in seen} == {operation.path for operation in chosen}
    assert {status for _, status in seen} >= ({200, 401} if mode is GenerationMode.POSITIVE else {401, 422})
