"""What a proxy before an external server answers in its place: the slot is down with its words, and the other slot serves."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.serving.fakes import TEXT
from tests.serving.slots.test_external import FakeService, Page, house_with


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            (502, "Serveur indisponible, réessayez".encode("latin-1"), "text/html"),
            "HTTP 502: Serveur indisponible, r\ufffdessayez",
        ),
        ((400, b"\xff\xfe", "text/plain"), "HTTP 400"),
        ((200, b"<title>caf\xe9</title>", "text/html"), "UnicodeDecodeError"),
        ((200, b'["their-model"]', "application/json"), "not OpenAI's API"),
        ((200, b'{"data": [null]}', "application/json"), "not OpenAI's API"),
        ((200, b"null", "application/json"), "not OpenAI's API"),
    ],
)
async def test_a_proxys_page_stops_no_other_slot(tmp_path: Path, tokenizer: Tokenizer, page: Page, words: str) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.page, house.engines[1].up = page, True
        await house.follow()
        first, second = house.arms.slots
        assert not first.up and words in first.state and second.up
        assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
        service.page, house.engines[1].up = None, False
        await house.follow()
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT


async def test_a_token_that_no_header_can_hold_stops_no_other_slot(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with house_with(FakeService(tokenizer), tmp_path, tokenizer, {"token": "their\nsecret"}) as house:
        house.engines[1].up = True
        await house.follow()
        assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
        assert house.arms.slots[0].state.startswith("down") and "secret" not in house.arms.slots[0].state
