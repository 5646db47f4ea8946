"""The corpus tests/data/clients: a request of each client, written after its source, with what it must become.

Each file has the request and its events as the client sends them (TOKEN stands for its token, $ID for the id in the answer), the
client, prefix and suffix that are recorded, the form of the answer, and the label of its events.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from infra.identity import user_hash
from serving.gateway.dialects import client_name
from tasks.labels.unreported import CLIENTS
from tests.serving.access.test_callers import sha256
from tests.serving.fakes import TEXT, House
from tests.serving.helpers import events
from tests.tasks.rows import join

FILES = sorted(Path("tests/data/clients").glob("*.json"))


def text_of(form: str, body: str) -> str:
    """Return the completion in an answer of this form."""
    if form == "openai_stream":
        *chunks, done = events(body)
        assert done == "[DONE]"
        return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    answer = json.loads(body)
    return answer["content"] if form == "infill" else answer["choices"][0]["text"]


@pytest.mark.parametrize("port", [0, 1], ids=["completions", "feedback"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_clients_requests_and_events(tmp_path: Path, tokenizer: Tokenizer, file: Path, port: int) -> None:
    """Send the request to the completions port, and its events to each of the two."""
    case = json.loads(file.read_text())
    tokens = {"editor": {"sha256": sha256("TOKEN"), "user": "ada", "projects": ["p1"]}}
    async with House(tmp_path, tokenizer, settings={"tokens": tokens}) as house:
        for name in ("Authorization", "X-User-ID", "X-Project-ID"):
            del house.client.headers[name]
        asked, expected = case["request"], case["expected"]
        sent = json.dumps(asked["body"], ensure_ascii=False).encode()
        answer = await house.client.post(house.urls[0] + asked["url"], content=sent, headers=asked["headers"])
        assert answer.status_code == expected["status"], answer.text
        if expected["status"] != 200:
            assert expected["message"] in answer.json()["error"]["message"]
            return
        assert text_of(expected["answer"], answer.text) == TEXT
        (row,) = house.rows("completions")
        assert (row.client, row.prefix, row.suffix) == (expected["client"], expected["prefix"], expected["suffix"])
        assert (row.user, row.project, row.finish_reason) == (user_hash(b"salt", "ada"), "p1", "length")
        assert row.language == expected.get("language", "")
        for event in case.get("events", ()):
            body: dict[str, Any] = json.loads(json.dumps(event["body"]).replace("$ID", row.id))
            got = await house.client.post(house.urls[port] + event["url"], json=body, headers=event["headers"])
            assert got.status_code == 200, got.text
        assert [row.outcome for row in house.rows("feedback")] == case.get("outcomes", [])
        assert {row.client for row in house.rows("feedback")} <= {case.get("event_client")}
        joined = join([row], house.rows("feedback"), join_seconds=60)
        label = joined.joined[0].label
        assert (label.outcome if label else None) == case.get("label") and joined.orphans == 0


async def test_a_client_looks_for_the_model_by_its_name(house: House) -> None:
    """As `models.retrieve` of OpenAI's clients does; a slash in a name is encoded."""
    url = house.urls[0] + "/v1/models"
    (listed,) = (await house.client.get(url)).json()["data"]
    assert (await house.client.get(f"{url}/{listed['id']}")).json() == listed
    for name in ("gpt-4", "Qwen%2FQwen2.5-Coder", "Qwen/Qwen2.5-Coder"):
        answer = await house.client.get(f"{url}/{name}")
        assert answer.status_code == 404 and "expected qwen-coder-x, the only one" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("agent", "body", "name"),
    [
        ("Zed/0.213.3 (linux; x86_64)", {}, "zed"),
        ("blazed/1.0", {}, "blazed"),
        ("discontinued/2.0", {}, "discontinued"),
        ("Visual Studio Code/1.103.0 (Continue/2.1.0)", {}, "continue"),
        ("Continue/1.0", {}, "continue"),
        ("node-fetch", {"stop": ["a", "/src/", "#- coding: utf-8", "```"]}, "continue"),
        ("node-fetch", {"stop": ["<|fim_prefix|>", "```"]}, "node-fetch"),
        ("OpenAI/Python 1.58.1", {"stop": "<|fim_prefix|>"}, "OpenAI"),
        ("AsyncOpenAI/Python 1.58.1", {"stop": ["<|fim_prefix|>", "<|fim_suffix|>"]}, "AsyncOpenAI"),
        ("okhttp/4.12.0", {}, "okhttp"),
        ("axios/1.7.9", {"input_prefix": "", "input_suffix": ""}, "llama"),
        ("axios/1.7.9", {"input_prefix": None, "prompt": ""}, "axios"),
        ("node", {"segments": None, "prompt": ""}, "node"),
        ("ktor-client", {"prompt": "<fim_prefix>a <fim_suffix> b<fim_middle>"}, "ktor-client"),
        ("node", {"stop": ["<EOT>", "<PRE>", "<SUF>", "<MID>"]}, "twinny"),
        ("node", {"options": {"stop": ["<EOT>"]}}, "node"),
        ("", {}, "unknown"),
    ],
)
def test_a_client_is_named_by_what_it_alone_sends(agent: str, body: dict[str, Any], name: str) -> None:
    headers = {"user-agent": agent, "api-key": "k"}
    assert client_name(headers, body) == name
    assert (name in CLIENTS) == (name == "continue"), "Continue's rules of reporting are applied to it alone"
