"""Exploring: a share of the requests is sampled at a temperature of its own, and the record says which."""

import uuid
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from infra.settings.schema import Sampling, Serving
from serving.slots.policy import Policy
from tests.serving.fakes import House
from tests.serving.helpers import ADMINISTRATOR


def policy(tokenizer: Tokenizer, share: float) -> Policy:
    explored = Sampling(temperature=0.1, exploring_share=share)
    return Policy(tokenizer, cast(Any, None), {"champion": explored, "challenger": Sampling(temperature=0.3)}, ())


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
def test_the_share_of_exploring_requests_is_the_settings(tokenizer: Tokenizer, share: float) -> None:
    champion = policy(tokenizer, share)
    ids = [f"cmpl-{uuid.UUID(int=number * 7919)}" for number in range(20_000)]
    explored = sum(champion.explores("champion", name) for name in ids) / len(ids)
    assert explored == pytest.approx(share, abs=0.006)
    assert not any(champion.explores("challenger", name) for name in ids[:2000])


@pytest.mark.parametrize("shares", [(0.1, 0.0), (0.0, 0.02)])
def test_arms_that_would_explore_differently_are_refused(shares: tuple[float, float]) -> None:
    """No arm counts what explores: 10 % fewer requests of each user on one arm break a test (test_checks.py)."""
    champion, challenger = (Sampling(temperature=0.3, exploring_share=share) for share in shares)
    with pytest.raises(ValidationError, match=r"challenger_sampling.exploring_share = .*, expected .* as sampling"):
        Serving(sampling=champion, challenger_sampling=challenger)
    assert Serving(sampling=champion, challenger_sampling=champion.model_copy(update={"temperature": 0.5}))


def test_an_exploring_request_has_a_temperature_of_its_own(tokenizer: Tokenizer) -> None:
    champion = policy(tokenizer, 0.1)
    temperatures = [champion.request([1], "champion", "1", exploring=exploring).temperature for exploring in (False, True)]
    assert temperatures == [0.1, 0.8]
    assert champion.request([1], "challenger", "1").temperature == 0.3


async def test_the_record_tells_exploring_requests_apart(tmp_path: Path, tokenizer: Tokenizer) -> None:
    house = House(tmp_path, tokenizer)
    house.sampling["champion"] = Sampling(temperature=0.5, exploring_share=0.1)
    async with house:
        for _ in range(80):
            await house.complete()
        pinned = {**ADMINISTRATOR, "X-Tabloop-Arm": "champion"}
        for _ in range(40):
            assert (await house.complete(headers=pinned)).status_code == 200
        rows = house.rows("completions")
        assert {row.temperature for row in rows if row.exploring} == {0.8}
        assert {row.temperature for row in rows if not row.exploring} == {0.5}
        assert not any(row.exploring for row in rows if row.pinned)
        explored = sum(row.exploring for row in rows)
        assert explored > 0
        text = house.metrics_text().decode()
        for sampling, count in (("exploring", explored), ("served", len(rows) - explored)):
            assert f'tabloop_shown_total{{arm="champion",sampling="{sampling}",version="0"}} {float(count)}' in text
        assert [(r.sampling, r.requests) for r in house.metrics.recent(house.clock)] == [
            ("exploring", explored),
            ("served", len(rows) - explored),
        ]
