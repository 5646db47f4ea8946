"""The training targets of samples: served or drawn tokens, settled text, or both, by the actions and weights of the loss."""

from collections.abc import Sequence
from typing import Any

from infra.records import Sample
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.batches import is_drawn
from tasks.trainer.update.safety import HarmfulUpdate


def uses_written_text(options: UpdateSettings) -> bool:
    """Return whether the settled text teaches."""
    return options.settled_weight > 0 and "written" in options.actions


def reads_tokens(sample: Sample, options: UpdateSettings) -> bool:
    """Return whether a term of the loss reads a sample's tokens; an action without an advantage has no part of the surrogate."""
    kind = "drawn" if is_drawn(sample) else "served"
    return (
        bool(sample.token_ids)
        and kind in options.actions
        and bool(options.kl_weight or options.entropy_weight or (options.surrogate_weight and sample.advantage))
    )


def taught_by(samples: Sequence[Sample], options: UpdateSettings) -> Sequence[Sample]:
    """Return the samples with a target under these weights.

    Raises:
        HarmfulUpdate: no sample has one.
    """
    written = uses_written_text(options)
    taught = [sample for sample in samples if reads_tokens(sample, options) or (written and sample.settled_token_ids)]
    if not taught:
        count, settled = len(samples), sum(bool(sample.settled_token_ids) for sample in samples)
        rewards = sorted({sample.reward for sample in samples if sample.token_ids})
        with_advantage = sum(bool(sample.advantage) for sample in samples)
        advantages = f"advantage above or below 0 for {with_advantage} of" if with_advantage else "advantage = 0 for each of"
        raise HarmfulUpdate(
            f"nothing teaches: actions = {list(options.actions)}, surrogate_weight = {options.surrogate_weight:g}, "
            f"settled_weight = {options.settled_weight:g}, {settled} of {count} samples with a settled text, {advantages} "
            f"{count} samples (rewards {rewards[:3]}), expected a text of one of the actions, with a weight; wait for settled "
            "text (collect.hindsight) or for accepts and rejections, or change train.actions"
        )
    return taught


def trained_part(samples: Sequence[Sample], options: UpdateSettings) -> Sequence[Sample]:
    """Return the samples with only the tokens that a term of the loss reads, to save the forward pass over the others."""
    written = uses_written_text(options)
    return [without(sample, not reads_tokens(sample, options), not written) for sample in samples]


def without(sample: Sample, sampled: bool, settled: bool) -> Sample:
    """Return a sample without its sampled tokens and their advantage, or without its settled text."""
    removed: dict[str, Any] = {"token_ids": (), "logprobs": (), "advantage": 0.0} if sampled and sample.token_ids else {}
    removed |= {"settled_token_ids": ()} if settled and sample.settled_token_ids else {}
    return sample.model_copy(update=removed) if removed else sample
