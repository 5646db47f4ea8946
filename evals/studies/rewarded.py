"""Rewards and advantages of samples that a study makes in memory."""

from collections.abc import Sequence

import polars as pl

from infra.records import Sample
from infra.settings.schema import Reward
from tasks.rewards.reward import UNKNOWN_LANGUAGE, with_advantages


def reward_of_samples(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """Return samples of simulated interactions, one of each prompt, with reward and advantage."""
    columns = ("outcome", "shown_characters", "accepted_characters", "kept_characters")
    values = {name: [getattr(sample, name) for sample in samples] for name in columns}
    frame = pl.DataFrame(values, schema_overrides={"kept_characters": pl.Int64})
    lengths = [len(sample.token_ids) for sample in samples]
    frame = frame.with_columns(tokens=pl.Series(lengths), prompt=pl.int_range(len(samples)), language=pl.lit(UNKNOWN_LANGUAGE))
    rewards = with_advantages(frame, settings).select("reward", "advantage").iter_rows(named=True)
    return [sample.model_copy(update=values) for sample, values in zip(samples, rewards, strict=True)]
