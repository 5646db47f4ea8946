"""The serving app on fakes, a new one for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.serving import fakes
from tests.serving.fakes import House


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return fakes.tokenizer()


@pytest.fixture
async def house(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    async with House(tmp_path, tokenizer) as app:
        yield app
