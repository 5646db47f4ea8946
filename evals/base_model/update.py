"""An update outside a cycle: samples that are made in memory, and the checkpoint that the project's trainer makes of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import Sample
from infra.settings.schema import Model, Reward
from infra.settings.training import Train
from infra.storage.store import to_parquet
from tasks.rewards.reward import UNKNOWN_LANGUAGE, with_advantages
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import command, follow, write_job

NOTHING: dict[str, Any] = {
    **{"user": "", "policy_version": "0", "token_ids": (), "logprobs": (), "temperature": 1.0, "outcome": "unjudged"},
    **{"shown_characters": 0, "accepted_characters": 0},
}
"""Fields of a sample of which no completion was sampled and nothing shown."""


def sample(name: str, prompt: Sequence[int], **values: Any) -> Sample:
    """Return a sample of a prompt's token ids; fields that are not given are NOTHING's."""
    return Sample(completion_id=name, prompt_token_ids=tuple(prompt), **NOTHING | values)


def renderer_of(checkpoint: Path, model: Model) -> Renderer:
    """Return what renders a checkpoint's prompts."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)


def rewarded(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """Return samples, one of each prompt, with reward and advantage."""
    columns = ("outcome", "shown_characters", "accepted_characters", "kept_characters")
    values = {name: [getattr(one, name) for one in samples] for name in columns}
    frame = pl.DataFrame(values, schema_overrides={"kept_characters": pl.Int64})
    lengths = [len(one.token_ids) for one in samples]
    frame = frame.with_columns(tokens=pl.Series(lengths), prompt=pl.int_range(len(samples)), language=pl.lit(UNKNOWN_LANGUAGE))
    rewards = with_advantages(frame, settings).select("reward", "advantage").iter_rows(named=True)
    return [one.model_copy(update=values) for one, values in zip(samples, rewards, strict=True)]


def job_of(folder: Path, parent: Path, samples: Sequence[Sample], version: str, training: Train) -> Path:
    """Write samples and the job of their update into a folder; return the job's file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "samples.parquet"
    file.write_bytes(to_parquet(samples))
    return write_job(folder, parent, file, version, training)


def train(job: Path, training: Train, say: Callable[[str], None] = lambda line: None) -> Path:
    """Run a job beside its file, and return the checkpoint.

    `say`: takes the trainer's lines of progress. Raises TrainingFailed where the trainer failed.
    """
    follow(command(job, training.processes), job.parent / "trainer.log", training.environment, say)
    return job.parent / CHECKPOINT_NAME
