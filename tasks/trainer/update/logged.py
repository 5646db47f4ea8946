"""What the trained policy thinks of logged answers: their log-probabilities after the update, for off-policy estimates.

At the temperature at which each was sampled. The estimates (evals/offpolicy.py) are made where the candidate is evaluated.
"""

import math
from collections.abc import Sequence

from infra.records import Sample
from tasks.trainer.job import Job, Logged
from tasks.trainer.model.trained_model import TrainedModel
from tasks.trainer.update.logprobs import current_logprobs

MOST = 256
"""Answers that are scored, so that the time of the forward pass is bounded."""


def logged_answers(model: TrainedModel, samples: Sequence[Sample], job: Job, sharpness: float) -> Logged:
    """Return log-probabilities of at most MOST rewarded answers under the current weights, on every rank.

    Args:
        sharpness: factor of the logits that the checkpoint is saved with.
    """
    rewarded = [i for i, s in enumerate(samples) if s.token_ids and s.outcome != "standing"]
    chosen = rewarded[:: math.ceil(len(rewarded) / MOST) or 1]
    # With a factor of the logits, an answer's temperature is lower by it.
    sharp = [s.model_copy(update={"temperature": s.temperature / sharpness}) for s in samples] if sharpness != 1 else samples
    found = current_logprobs(model, sharp, chosen, job.micro_batch_tokens)
    return Logged(
        rewards=tuple(samples[i].reward for i in chosen),
        candidate=tuple(sum(found[i]) for i in chosen),
        behaviour=tuple(sum(samples[i].logprobs) for i in chosen),
        # What a model of the reward may know before the answer: how much code the request holds, in powers of two.
        groups=tuple(str(len(samples[i].prompt_token_ids).bit_length()) for i in chosen),
    )
