"""The steps `fit keep estimate` and `reward` of a cycle."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl
from prefect.logging import get_run_logger

from infra.records import AcceptanceFit, RewardTotals
from infra.storage.events import tombstones
from tasks.evaluation.models.base import DrawnGroup
from tasks.evaluation.models.engine import EngineAway, engine_models
from tasks.evaluation.models.groups import GroupPrompt, draw_groups
from tasks.labels import context_lines, samples
from tasks.labels.accounting import Waiting
from tasks.labels.collect import Collected
from tasks.labels.samples import SettledTokens
from tasks.labels.shares import weight_shares
from tasks.rewards import sampled_groups
from tasks.rewards.reward import RewardedActions, reward_samples, reward_totals
from tasks.rewards.sampled_groups import SampledGroups, SettledPlace
from tasks.rewards.weights import TooFewToShare
from tasks.showing import fit as showing
from tasks.showing import report
from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.showing.labels import labelled_completions
from tasks.steps.context import Context
from tasks.steps.joining import read_all
from tasks.steps.naming import call_waiting
from tasks.steps.step import IO_RETRIES, step
from tasks.steps.validate import Validated


@dataclass(frozen=True, eq=False)
class Rewarded:
    """The samples of a cycle with their rewards and tokens."""

    samples: bytes
    """Parquet of infra.records.Sample."""
    returns: tuple[RewardTotals, ...]
    """Totals of the rewards (Manifest.returns)."""
    acceptance: AcceptanceFit | None = None
    """Of the acceptance that rewards the drawn texts."""
    notes: tuple[str, ...] = ()
    """Parts of the update that are left out, each with its reason."""


@step("fit keep estimate", retries=IO_RETRIES)
def fit_keep_estimate(context: Context, validated: Validated) -> FittedEstimate | Unfitted:
    """Fit the keep estimate on the samples for the candidate's version. A version without one shows everything."""
    collected = validated.collected
    chosen = collected.accounting.samples
    labelled = list(labelled_completions(context.store, collected.plan.partitions, chosen))
    fitted = showing.fit(labelled, weight_shares(context.settings.collect))
    get_run_logger().info("keep estimate: %s", report.summary(fitted))
    return fitted


@step("reward", retries=IO_RETRIES)
def reward(context: Context, validated: Validated) -> Rewarded | Waiting:
    """Reward the actions of each place, draw those that nobody saw, and read the samples' tokens."""
    store, settings, collected = context.store, context.settings, validated.collected
    partitions = collected.plan.partitions
    tombstones.check(store, validated.subjects)  # the text of erased subjects cannot be read any more
    read = partial(read_all, context, partitions)
    lines = partial(read, "find context lines")
    chosen = context_lines.with_context_lines(store, partitions, collected.accounting.samples, read_all=lines)
    settled = settled_tokens(context, collected.parent, chosen)
    tokens = samples.read_tokens(store, partitions, chosen, settled, partial(read, "read tokens"))
    try:
        drawn = groups_of(context, collected) if settings.train.draws else SampledGroups()
    except EngineAway as error:
        return call_waiting(Waiting("WaitingForEngine", f"nothing is drawn or sealed: {error}. The next run begins again"))
    try:
        rewarded, notes = capped(context, samples.with_settled_tokens(chosen, settled, tokens), drawn)
    except TooFewToShare as error:
        return call_waiting(Waiting("WaitingForUsers", str(error)))
    tombstones.check(store, validated.subjects)  # nor their tokens
    batch = rewarded.samples
    groups = [samples.table(rewarded.drawn)] if rewarded.drawn else []
    body = samples.parquet([*samples.tables(tokens, batch), *groups])
    totals = reward_totals(*(batch[name].to_list() for name in ("reward", "tokens", "language")))
    return Rewarded(body, totals, drawn.error if rewarded.drawn else None, notes)


def capped(context: Context, chosen: pl.DataFrame, drawn: SampledGroups) -> tuple[RewardedActions, tuple[str, ...]]:
    """Return the actions with their advantages, and notes on those that do not teach, each with its reason.

    Raises:
        TooFewToShare: too few users have any weight, and no written text could teach instead.
    """
    settings, logger = context.settings, get_run_logger()
    shares, kinds = weight_shares(settings.collect), settings.train.actions
    left = " and ".join(kind for kind in kinds if kind != "drawn")
    others = f"{left} texts alone do" if left else "nothing else does by train.actions"
    notes = [f"no drawn text teaches, since {drawn.reason}; {others}"] if drawn.reason else []
    try:
        rewarded = reward_samples(chosen, settings.reward, shares, kinds, drawn.actions)
    except TooFewToShare as error:
        if "written" not in kinds:
            raise
        rewarded = reward_samples(chosen, settings.reward, shares, ("written",))
        if not rewarded.samples["settled_token_ids"].list.len().sum():
            raise
        notes.append(f"the written text alone teaches, since {error}")
    for note in notes:
        logger.warning("%s", note)
    if drawn.error and rewarded.drawn:
        logger.info(
            "drawn texts: %d rows teach; acceptance fitted on %d verdicts, log loss %.4f against %.4f of their mean",
            *(len(rewarded.drawn), drawn.error.verdicts, drawn.error.log_loss, drawn.error.base_log_loss),
        )
    return rewarded, tuple(notes)


def settled_tokens(context: Context, parent: str, batch: pl.DataFrame) -> SettledTokens | None:
    """Return the tokenizer of settled text and context lines, that of the parent; None where a batch has neither."""
    if batch["settled"].null_count() == batch.height and not batch["standing"].list.len().sum():
        return None
    settings, renderer = context.settings, context.renderer(context.tokenizer(parent))
    return SettledTokens(renderer, settings.serving.sampling.max_tokens, settings.collect.hindsight.lines)


def groups_of(context: Context, collected: Collected) -> SampledGroups:
    """Draw the groups of a cycle from its parent, by the evaluation's engine.

    Raises:
        EngineAway: the engine does not answer.
        EngineRefused: it refuses the checkpoint or a prompt.
    """
    settings, wanted = context.settings, context.settings.train.groups
    checkpoint = context.checkpoint(collected.parent)
    sources = None if settings.evaluate.shares_disk else {checkpoint: context.registry.version(collected.parent).source}
    of_parent = context.adapter(collected.parent)
    adapters = {checkpoint: of_parent[1]} if of_parent else {}
    places = sampled_groups.settled_places(context.store, collected.plan.partitions, collected.accounting.samples)
    sampling = settings.serving.sampling.model_copy(update={"temperature": wanted.temperature})

    def sampler(asked: Sequence[SettledPlace]) -> Sequence[DrawnGroup]:
        prompts = [GroupPrompt(place.id, place.prefix, place.suffix) for place in asked]
        with engine_models(settings, collected.champion, sources, adapters) as models:
            return draw_groups(models, checkpoint, settings.model, prompts, wanted.size, sampling)

    began = time.monotonic()
    shares = weight_shares(settings.collect)
    found = sampled_groups.draw(places, collected.parent, sampler, wanted, settings.reward, shares)
    get_run_logger().info("drew %d actions in %.1f s", len(found.actions), time.monotonic() - began)
    return found
