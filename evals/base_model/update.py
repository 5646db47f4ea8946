"""An update outside a cycle: samples that are made in memory, and the checkpoint that the project's trainer makes of them."""

import resource
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import Sample
from infra.settings.schema import Model, Reward
from infra.settings.training import Train
from infra.storage.store import to_parquet
from tasks.rewards.reward import EVERY, DrawnAction, reward_samples
from tasks.trainer.job import CHECKPOINT_NAME, METRICS_NAME, Metrics
from tasks.trainer.run import command, follow, write_job

NOTHING: dict[str, Any] = {
    **{"user": "", "policy_version": "0", "token_ids": (), "logprobs": (), "temperature": 1.0, "outcome": "unjudged"},
    **{"shown_characters": 0, "accepted_characters": 0},
}
"""Fields of a sample of which no completion was sampled and nothing shown."""

OFF_POLICY = {
    f"{kind}_{name}": (f"{title} of {kind} actions", unit)
    for kind in ("served", "drawn")
    for name, title, unit in (
        ("clip_fraction", "clipped share", "of the tokens"),
        ("kl", "KL from the behaviour", "nats a token"),
        ("effective_samples", "effective sample size", "of the tokens"),
    )
}
"""Means of the trainer's steps (tasks/trainer/job.py), by field: the figure's name and unit."""


def sample(name: str, prompt: Sequence[int], **values: Any) -> Sample:
    """Return a sample of a prompt's token ids; fields that are not given are NOTHING's."""
    return Sample(completion_id=name, prompt_token_ids=tuple(prompt), **NOTHING | values)


def renderer_of(checkpoint: Path, model: Model) -> Renderer:
    """Return what renders a checkpoint's prompts."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)


def rewarded(
    samples: Sequence[Sample],
    settings: Reward,
    kinds: Collection[str] = EVERY,
    drawn: Sequence[DrawnAction] = (),
    settled: Mapping[str, str] | None = None,
) -> list[Sample]:
    """Return samples, each of a place of its own, with reward and advantage, and the drawn actions that teach.

    Samples without tokens are left out, as the settled text of a complete line has none without silence.

    Args:
        kinds: those that teach (train.actions).
        drawn: at places of the samples.
        settled: settled texts by place, behind what was typed over, for the worth of the shown ones; without them it is the share
            that was kept.
    """
    columns = ("outcome", "shown_characters", "accepted_characters", "kept_characters", "settled_token_ids")
    values = {name: [getattr(one, name) for one in samples] for name in columns}
    values |= {name: [getattr(one, name) for one in samples] for name in ("user", "project", "credential")}
    ids = [one.completion_id for one in samples]
    frame = pl.DataFrame(
        values | {"id": ids, "tokens": [len(one.token_ids) for one in samples], "settled": [(settled or {}).get(i) for i in ids]},
        schema_overrides={"kept_characters": pl.Int64, "settled": pl.String, "settled_token_ids": pl.List(pl.Int64)},
    )
    found = reward_samples(frame.with_columns(standing_tokens=pl.lit(0), typed_over=pl.lit(0)), settings, {}, kinds, drawn)
    rows = []
    learnt = found.samples.select("reward", "advantage", "settled_token_ids").iter_rows()
    for one, (reward, advantage, ids) in zip(samples, learnt, strict=True):
        if one.token_ids or ids:
            rows.append(one.model_copy(update={"reward": reward, "advantage": advantage, "settled_token_ids": tuple(ids)}))
    return [*rows, *found.drawn]


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


def costs(folder: Path) -> dict[str, tuple[float, str]]:
    """Return the seconds of an update, the memory of the largest process that this one has started, how far off-policy the served
    and the drawn actions were, means over the steps that they taught in, and how many these were, with their units."""
    metrics = Metrics.model_validate_json((folder / METRICS_NAME).read_text())
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    found = {
        "seconds of the update": (sum(metrics.seconds.values()), "s"),
        "memory of a process of the update": (largest, "MiB"),
    }
    for name, (title, unit) in OFF_POLICY.items():
        values = [value for step in metrics.steps if (value := getattr(step, name)) is not None]
        if values:
            found[title] = (sum(values) / len(values), unit)
            found[f"steps with {name.partition('_')[0]} actions"] = (float(len(values)), f"of {len(metrics.steps)}")
    return found
