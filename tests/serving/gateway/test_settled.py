"""Editors that tell what became of a place, and editors that only ask: Zed's requests, and the file that a request names."""

from typing import Any

import pytest

from infra.model.fim import SPECIAL_TOKENS, parse_prompt, path_of
from tests.serving.fakes import TEXT, House

ZED = {
    "model": "qwen-coder-tabloop",
    "prompt": "<|fim_prefix|>def f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>",
    "max_tokens": 64,
    "stop": [*SPECIAL_TOKENS, "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<|end|>", "<EOT>", "<PRE>", "<SUF>"],
}
"""Zed's open_ai_compatible_api provider: not streamed, no temperature, no user; before it took 4, it sent 14 stop strings."""


async def test_zed_gets_a_completion_of_its_request(house: House) -> None:
    response = await house.client.post(house.urls[0] + "/v1/completions", json=ZED, headers={"User-Agent": "Zed/0.205.0"})
    assert response.status_code == 200
    assert {"id", "object", "created", "model", "choices", "usage"} <= response.json().keys(), "Zed reads no answer without them"
    assert response.json()["choices"][0] == {"text": TEXT, "index": 0, "logprobs": None, "finish_reason": "length"}
    (row,) = house.rows("completions")
    assert (row.client, row.prefix, row.suffix, row.file) == ("zed", "def f(x):\n    ", "\n\nprint(1)\n", "")


async def test_the_settled_text_is_recorded_with_or_without_a_decision(house: House) -> None:
    completion = (await house.complete()).json()["id"]
    bodies = [
        {"completion_id": completion, "outcome": "accepted", "settled": "return x\n"},
        {"completion_id": completion, "settled": ""},
        {"completion_id": completion, "settled_kept": 12, "settled_total": 40},
        {"completion_id": completion, "outcome": "rejected", "reason": "typed_away"},
        {"completion_id": completion, "reason": "cancelled"},
        {"completion_id": completion, "reason": "typed_through", "settled": "return x\n"},
        {"completion_id": completion, "reason": "rejected", "seen_ms": 120},
        {"completion_id": completion, "reason": "typed_away"},
    ]
    for body in bodies:
        assert (await house.send_feedback("/v1/feedback", body)).status_code == 200
    rows = [(row.outcome, row.settled, row.settled_kept, row.settled_total, row.reason) for row in house.rows("feedback")]
    assert rows == [
        ("accepted", "return x\n", None, None, ""),
        ("shown", "", None, None, ""),
        ("shown", None, 12, 40, ""),
        ("rejected", None, None, None, "typed_away"),
        ("shown", None, None, None, "cancelled"),
        ("shown", "return x\n", None, None, "typed_through"),
        ("rejected", None, None, None, "rejected"),
        ("rejected", None, None, None, "typed_away"),
    ]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "outcome"),
        ({"settled_kept": 3}, "settled_total"),
        ({"settled": "x", "settled_kept": 1, "settled_total": 1}, "settled"),
        ({"reason": "bored"}, "reason"),
        ({"outcome": "accepted", "reason": "typed_away"}, "reason"),
        ({"outcome": "retained", "retained": "x", "reason": "replaced"}, "reason"),
        ({"settled": "x" * 10_001}, "settled"),
    ],
)
async def test_a_wrong_report_is_refused_by_name(house: House, body: dict[str, Any], named: str) -> None:
    response = await house.send_feedback("/v1/feedback", {"completion_id": "c", **body})
    assert response.status_code == 422
    assert named in response.json()["error"]["message"]
    assert not house.rows("feedback")


@pytest.mark.parametrize(
    "report",
    [
        {"settled": "x" * 10_001},
        {"settled": ["x"]},
        {"settled_kept": 12, "settled_total": 10_001},
        {"settled_kept": -1, "settled_total": 40},
        {"reason": "bored"},
    ],
)
async def test_what_is_wrong_in_a_report_costs_no_outcome(house: House, report: dict[str, Any]) -> None:
    for outcome in ("accepted", "rejected"):
        answer = await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": outcome, **report})
        assert answer.status_code == 200
    rows = [(row.outcome, row.settled, row.settled_kept, row.settled_total, row.reason) for row in house.rows("feedback")]
    assert rows == [("accepted", None, None, None, ""), ("rejected", None, None, None, "")]


async def test_the_settled_text_of_who_opted_out_is_not_recorded(house: House) -> None:
    headers = {"X-Tabloop-Opt-Out": "1"}
    await house.client.post(house.urls[0] + "/v1/completions", json=NAMED, headers=headers)
    body = {"completion_id": "c", "settled": "mine", "settled_kept": None}
    await house.client.post(house.urls[1] + "/v1/feedback", json=body, headers=headers)
    (event,), (row,) = house.rows("feedback"), house.rows("completions")
    assert event.settled is None
    assert row.opted_out and row.file == ""


PREAMBLE = "<|repo_name|>shop\n<|file_sep|>cart.py\nitems = []\n<|file_sep|>src/pay.py\n"
NAMED = {"prompt": PREAMBLE + "<|fim_prefix|>def<|fim_suffix|>\n<|fim_middle|>"}


async def test_of_a_path_a_keyed_hash_is_recorded(house: House) -> None:
    tabby = {"segments": {"prefix": "def", "suffix": "\n", "filepath": "src/pay.py"}, "language": "python"}
    other = {"segments": {"prefix": "def", "suffix": "\n", "filepath": "src/cart.py"}}
    for body in (NAMED, tabby, other, ZED):
        await house.client.post(house.urls[0] + "/v1/completions", json=body)
    files = [row.file for row in house.rows("completions")]
    assert files[0] == files[1] != files[2] and files[3] == ""
    assert all(len(file) == 32 for file in files[:3])
    assert "pay.py" not in "".join(file for file in files)


@pytest.mark.parametrize(
    ("preamble", "path"),
    [
        ("<|repo_name|>r\n<|file_sep|>a.py\ntext\n<|file_sep|>b.py\n", "b.py"),
        ("<|file_sep|>b.py\n", "b.py"),
        ("<|file_sep|>a.py\ntext of another file\n", ""),
        ("", ""),
        ("# a comment\n", ""),
    ],
)
def test_the_path_of_a_prompt_stands_last_in_its_preamble(preamble: str, path: str) -> None:
    context = parse_prompt(f"{preamble}<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>")
    assert path_of(context) == path
