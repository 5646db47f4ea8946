"""Prompts as the clients' templates make them, from the route to the record: read whole or refused by name; markers and ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from infra.model.fim import FORMATS, MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX, Format
from tests.serving import fakes
from tests.serving.fakes import TEXT, House
from tests.serving.helpers import CONTINUE_STOPS, events

BEFORE, AFTER, TAIL = "def area(width, height):\n", "\n\nprint(area(2, 3))\n", "    return width * "


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
async def test_a_prompt_of_every_format_is_recorded_as_its_prefix_and_suffix(house: House, each: Format) -> None:
    prompt = each.prompt(BEFORE + TAIL, AFTER)
    for fields in ({}, {"suffix": ""}, {"suffix": None}):
        assert (await house.complete(prompt=prompt, **fields)).json()["choices"][0]["text"] == TEXT
    assert [(row.prefix, row.suffix) for row in house.rows("completions")] == [(BEFORE + TAIL, AFTER)] * 3
    refused = await house.complete(prompt=prompt, suffix=AFTER)
    assert refused.status_code == 400 and "suffix" in refused.json()["error"]["message"]
    if each.middle:
        unclosed = each.prompt(BEFORE, AFTER).removesuffix(each.closing)
        assert (await house.complete(prompt=unclosed + TAIL)).status_code == 200
        last = house.rows("completions")[-1]
        assert (last.prefix, last.suffix) == (BEFORE + TAIL, AFTER), "the cursor's line stands behind the middle marker"


async def test_a_next_edit_prompt_is_refused_with_the_clients_setting(house: House) -> None:
    prompt = (
        "<[fim-suffix]>\nprint(1)\n<[fim-prefix]><filename>edit_history\n--- a/a.py\n+++ b/a.py\n\n<filename>a.py\n"
        "def f(x):\n<<<<<<< CURRENT\n    return <|user_cursor|>\n=======\n<[fim-middle]>"
    )
    answer = await house.complete(prompt=prompt)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prompt")
    for part in (repr(prompt[:40]), "zeta2", "expected", "prompt_format", "qwen"):
        assert part in error["message"]
    assert house.rows("completions") == [] and house.engines[0].requests[1:] == []


MARKERS_IN_CODE = (*SPECIAL_TOKENS, "<|im_end|>", "<fim_middle>", "<｜fim▁hole｜>", "\u200b", "<|\u200bfim_middle|>")


@pytest.fixture
def chat_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with Qwen's chat tokens, as its checkpoints declare them."""
    chat = fakes.tokenizer()
    chat.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    chat.add_tokens([AddedToken("<|eot_id|>", special=False, normalized=False)])
    return chat


@pytest.mark.parametrize("marker", MARKERS_IN_CODE)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_marker_in_code_comes_back_as_it_was(
    tmp_path: Path, chat_tokenizer: Tokenizer, marker: str, stream: bool
) -> None:
    code = f'X = "{marker}"\nY = '
    async with House(tmp_path, chat_tokenizer) as house:
        house.engines[0].reply = house.policy.renderer.encode(f'"{marker}"')[:24]
        assert not {*house.engines[0].reply} & {*house.policy.stop_token_ids}
        body = {"prompt": code, "suffix": "\n", "stream": stream, "stop": [*CONTINUE_STOPS, "<|im_end|>"]}
        answer = await house.client.post(house.urls[0] + "/v1/completions", json=body)
        chunks = [json.loads(event) for event in events(answer.text)[:-1]] if stream else [answer.json()]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == f'"{marker}"'
        (row,) = house.rows("completions")
        assert (row.text, row.prefix) == (f'"{marker}"', code) and row.token_ends[-1] == len(row.text)
        inside = [token for token in row.prompt_token_ids if token in house.policy.stop_token_ids]
        assert sorted(inside) == sorted(t for m in (PREFIX, SUFFIX, MIDDLE) if (t := chat_tokenizer.token_to_id(m)) is not None)
        assert chat_tokenizer.decode(row.prompt_token_ids, skip_special_tokens=False).count("\u200b") == code.count("\u200b")


@pytest.mark.parametrize("end", ["<|im_end|>", "<|im_start|>", "<|eot_id|>", *SPECIAL_TOKENS])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_control_token_ends_a_completion(tmp_path: Path, chat_tokenizer: Tokenizer, end: str, stream: bool) -> None:
    async with House(tmp_path, chat_tokenizer) as house:
        number = chat_tokenizer.token_to_id(end)
        assert number in house.policy.stop_token_ids and number is not None
        own = house.policy.renderer.encode("return a + b")
        house.engines[0].reply = [*own, number, *house.policy.renderer.encode("\nuser\nthanks")]
        stops: list[str] = [*CONTINUE_STOPS, "<|im_start|>", "<|im_end|>"]
        answer = await house.complete(prompt="def f(a, b):\n    ", stream=stream, stop=stops)
        choices: list[dict[str, Any]] = (
            [json.loads(event)["choices"][0] for event in events(answer.text)[:-1]] if stream else answer.json()["choices"]
        )
        assert "".join(choice["text"] for choice in choices) == "return a + b" and choices[-1]["finish_reason"] == "stop"
        (row,) = house.rows("completions")
        assert (row.text, row.finish_reason, row.held_back) == ("return a + b", "stop", "")
        assert row.token_ids == (*own, number) and len(row.logprobs) == len(row.token_ends) == len(row.token_ids)
