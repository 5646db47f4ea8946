"""The steps `fit keep estimate` and `reward` of a cycle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from prefect.logging import get_run_logger

from infra.records import RewardTotals
from infra.storage.events import tombstones
from tasks.labels import context_lines, samples
from tasks.labels.accounting import Waiting
from tasks.labels.collect import Collected
from tasks.labels.samples import SettledTokens
from tasks.labels.shares import weight_shares
from tasks.rewards import sampled_groups
from tasks.rewards.reward import reward_samples, reward_totals
from tasks.rewards.weights import TooFewToShare
from tasks.showing import fit as showing
from tasks.showing import report
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.showing.labels import labelled_completions
from tasks.steps.context import Context
from tasks.steps.naming import call_waiting
from tasks.steps.step import IO_RETRIES, step
from tasks.steps.validate import Validated
from tasks.validation import drift

if TYPE_CHECKING:
    from tasks.evaluation.models.generation import SampledCompletion


@dataclass(frozen=True, eq=False)
class Rewarded:
    """The samples of a cycle with their rewards and tokens."""

    samples: bytes
    """Parquet of infra.records.Sample."""
    returns: tuple[RewardTotals, ...]
    """Totals of the rewards (Manifest.returns)."""


@step("fit keep estimate", retries=IO_RETRIES)
def fit_keep_estimate(context: Context, validated: Validated) -> FittedEstimate | Unfitted:
    """Fit the keep estimate on the samples for the candidate's version. A version without one shows everything."""
    collected = validated.collected
    chosen = collected.accounting.samples
    fitted = showing.fit(list(labelled_completions(context.store, collected.plan.partitions, chosen)))
    get_run_logger().info("keep estimate: %s", report.summary(fitted))
    return fitted


@step("reward", retries=IO_RETRIES)
def reward(context: Context, validated: Validated) -> Rewarded | Waiting:
    """Reward the samples, and read their tokens."""
    store, settings, collected = context.store, context.settings, validated.collected
    partitions, shares = collected.plan.partitions, weight_shares(settings.collect)
    past = drift.returns(store, settings) if settings.reward.baseline == "running" else ()
    tombstones.check(store, validated.subjects)  # the text of erased subjects cannot be read any more
    chosen = context_lines.with_context_lines(store, partitions, collected.accounting.samples)
    tokens = settled_tokens(context, collected.parent, chosen)
    try:
        batch = reward_samples(samples.with_settled_tokens(chosen, tokens), settings.reward, shares, past)
    except TooFewToShare as error:
        return call_waiting(Waiting("WaitingForUsers", str(error)))
    groups = groups_of(context, collected)
    tombstones.check(store, validated.subjects)  # nor their tokens
    body = samples.parquet([*samples.tables(store, partitions, batch, tokens), *groups])
    return Rewarded(body, reward_totals(*(batch[name].to_list() for name in ("reward", "tokens", "language"))))


def settled_tokens(context: Context, parent: str, batch: pl.DataFrame) -> SettledTokens | None:
    """Return the tokenizer of settled text and context lines, that of the parent; None where a batch has neither."""
    if batch["settled"].null_count() == batch.height and not batch["standing"].list.len().sum():
        return None
    settings, renderer = context.settings, context.renderer(context.tokenizer(parent))
    return SettledTokens(renderer, settings.serving.sampling.max_tokens, settings.collect.hindsight.lines)


def groups_of(context: Context, collected: Collected) -> list[pa.Table]:
    """Return the rows of groups drawn from the parent at the samples' positions, as the settings ask for."""
    settings = context.settings
    wanted = settings.train.groups
    if not wanted.places:
        return []
    checkpoint = context.checkpoint(collected.parent)
    from tasks.evaluation.models.generation import Generator

    def sampler(contexts: Sequence[tuple[str, str]]) -> "Sequence[SampledCompletion]":
        most = settings.serving.sampling.max_tokens
        return Generator(checkpoint, settings.model).sample(contexts, most, wanted.temperature, seed=0)

    places = list(sampled_groups.settled_places(context.store, collected.plan.partitions, collected.accounting.samples))
    found = sampled_groups.draw(places, collected.parent, sampler, wanted, settings.reward, weight_shares(settings.collect))
    get_run_logger().info("sampled groups: %d rows%s", len(found.samples), found.reason and f", since {found.reason}")
    return [samples.table(found.samples)] if found.samples else []
