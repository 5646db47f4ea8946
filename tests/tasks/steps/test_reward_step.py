"""The step that rewards a cycle's actions waits where too few have any weight and no text could teach instead."""

import logging
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from infra.settings.schema import Collect, Reward, Train
from tasks.rewards.sampled_groups import SampledGroups
from tasks.rewards.weights import TooFewToShare
from tasks.steps import reward as step
from tests.tasks.made import sample
from tests.tasks.rows import sample_frame


@pytest.mark.parametrize("silence", [True, False])
def test_where_too_few_have_an_advantage_the_written_text_teaches_if_there_is_any(
    silence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "get_run_logger", logging.getLogger)
    settings = SimpleNamespace(collect=Collect(max_user_weight=0.5), reward=Reward(silence=silence), train=Train())
    context: Any = SimpleNamespace(settings=settings)
    taken = [sample("a", user="u"), sample("b", user="u", outcome="rejected", accepted_characters=0)]
    complete = [sample(name, user=name, token_ids=[], logprobs=[], settled_token_ids=[2]) for name in "cd"]
    frame = sample_frame([*taken, *complete]).with_columns(settled=pl.Series([None, None, "\n", "\n"]))
    if silence:
        made, notes = step.capped(context, frame, SampledGroups())
        assert made.samples["settled_weight"].to_list() == [1.0] * 4 and notes[0].startswith("the written text alone teaches")
    else:
        with pytest.raises(TooFewToShare, match="1 users for 2 or more"):
            step.capped(context, frame, SampledGroups())
