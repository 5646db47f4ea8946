"""Responses to ordinary clients do not show which version or arm served them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from infra.settings.schema import Sampling
from tests.serving.fakes import EDITOR, SIMULATION, TOKEN, House
from tests.serving.helpers import ADMINISTRATOR, CONTINUE, INFILL, run_experiment

REQUESTS = (
    ("/v1/completions", {"prompt": "x = "}),
    ("/v1/completions", CONTINUE),
    ("/v1/completions", {"segments": {"prefix": "x = "}}),
    ("/infill", INFILL),
    ("/infill", INFILL | {"stream": True}),
)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_the_answers_of_both_arms_look_alike(tmp_path: Path, tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    async with House(tmp_path, tokenizer, challenger=Sampling(temperature=0.3, max_tokens=5)) as house:
        await run_experiment(house)
        for engine in house.engines:
            engine.reply = engine.reply[:5]
        seen: dict[str, set[str]] = {}
        for number in range(12):
            headers = {"Authorization": f"Bearer {TOKEN}", "X-User-ID": f"user{number}"}
            answer = await house.client.post(house.urls[0] + path, json=body, headers=headers)
            assert answer.status_code == 200
            shown = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
            settings = [line for line in answer.text.replace(" ", "").split('"') if line == "temperature"]
            seen.setdefault(house.rows("completions")[-1].arm, set()).add(json.dumps([shown, settings]))
        assert set(seen) == {"champion", "challenger"} and len(set.union(*seen.values())) == 1


@pytest.mark.parametrize(("token", "shown"), [(EDITOR, False), (TOKEN, False), (SIMULATION, True)])
async def test_a_token_with_the_role_versions_sees_the_version(house: House, token: str, shown: bool) -> None:
    for path, body in REQUESTS:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await house.client.post(house.urls[0] + path, json=body, headers=headers)
        assert answer.headers.get("x-tabloop-version") == ("0" if shown else None)
        assert ('"temperature"' in answer.text) == (shown and path == "/infill")


async def test_open_routes_name_no_version(house: House) -> None:
    await run_experiment(house)
    for path in ("/health", "/ready", "/v1/health"):
        answer = await house.client.get(house.urls[0] + path, headers={"Authorization": ""})
        assert answer.status_code == 200
        assert not {"1", "2", "version 1", "champion", "challenger"} & set(_texts(answer.json()))
    assert (await house.client.get(house.urls[0] + "/ready")).json() == {"ready": True}
    assert (await house.client.get(house.urls[0] + "/metrics")).status_code == 403
    assert (await house.client.get(house.urls[0] + "/metrics", headers=ADMINISTRATOR)).status_code == 200


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else [str(value)]
