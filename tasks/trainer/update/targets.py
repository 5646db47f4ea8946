"""What the samples teach: their sampled tokens, their settled text, or both, by the weights of the loss."""

from collections.abc import Sequence

from infra.records import Sample
from infra.settings.training import UpdateSettings
from tasks.trainer.update.safety import HarmfulUpdate


def uses_sampled_tokens(options: UpdateSettings) -> bool:
    """Return whether a term of the loss reads the sampled tokens."""
    return any((options.surrogate_weight, options.kl_weight, options.entropy_weight))


def taught_by(samples: Sequence[Sample], options: UpdateSettings) -> Sequence[Sample]:
    """Return the samples that have something to teach under these weights.

    Raises:
        HarmfulUpdate: none has.
    """
    if uses_sampled_tokens(options):
        return samples
    settled = [sample for sample in samples if sample.settled_token_ids]
    if not settled or not options.settled_weight:
        raise HarmfulUpdate(
            f"surrogate_weight = 0, settled_weight = {options.settled_weight:g}, {len(settled)} of {len(samples)} samples with a "
            "settled text: nothing teaches; raise a weight, or wait for settled text (collect.hindsight)"
        )
    return settled


def without_sampled_tokens(sample: Sample) -> Sample:
    """Return the sample with its settled text alone: its sampled tokens would cost a pass and change nothing."""
    return sample.model_copy(update={"token_ids": (), "logprobs": ()})
