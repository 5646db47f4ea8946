"""The training targets of samples: sampled tokens, settled text, or both, by the weights of the loss."""

import math
from collections.abc import Mapping, Sequence

from infra.records import Sample
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.safety import HarmfulUpdate, check_classes


def uses_sampled_tokens(options: UpdateSettings) -> bool:
    """Return whether a term of the loss reads the sampled tokens."""
    return any((options.surrogate_weight, options.kl_weight, options.entropy_weight))


def taught_by(samples: Sequence[Sample], options: UpdateSettings) -> Sequence[Sample]:
    """Return the samples with a target under these weights.

    Raises:
        HarmfulUpdate: no sample has one, or check_classes refuses the sampled tokens.
    """
    if uses_sampled_tokens(options):
        check_classes(samples)
        return samples
    settled = [sample for sample in samples if sample.settled_token_ids]
    if not settled or not options.settled_weight:
        raise HarmfulUpdate(
            f"surrogate_weight = 0, settled_weight = {options.settled_weight:g}, {len(settled)} of {len(samples)} samples with a "
            "settled text: nothing teaches; raise a weight, or wait for settled text (collect.hindsight)"
        )
    return settled


def trained_part(samples: Sequence[Sample], options: UpdateSettings) -> Sequence[Sample]:
    """Return the samples with only the tokens that a term of the loss reads, to save the forward pass over the others."""
    if uses_sampled_tokens(options):
        return samples
    return [sample.model_copy(update={"token_ids": (), "logprobs": ()}) for sample in samples]


def likely_enough(samples: Sequence[Sample], powers: Mapping[int, float], options: UpdateSettings) -> list[Sample]:
    """Return samples without the settled texts whose power is below `settled_least_power`.

    A sample without a target is then left out.

    Args:
        powers: logarithms of the settled texts' powers at the update's start, by the sample's index (caps.log_powers).

    Raises:
        HarmfulUpdate: no sample is left.
    """
    least = math.log(options.settled_least_power)
    unlikely = {i for i, power in powers.items() if power < least}
    kept = [s.model_copy(update={"settled_token_ids": ()}) if i in unlikely else s for i, s in enumerate(samples)]
    scored = uses_sampled_tokens(options)
    found = [sample for sample in kept if sample.settled_token_ids or (scored and sample.token_ids)]
    if not found:
        raise HarmfulUpdate(
            f"settled_least_power = {options.settled_least_power:g}: none of {len(powers)} settled texts is as likely; lower it"
        )
    return found
