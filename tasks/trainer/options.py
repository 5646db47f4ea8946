"""All options of one update: those of the settings, and those that the trainer offers beyond them.

A team never sets the latter: they protect an update, or belong to experiments with the loss. Imports no torch.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infra.settings.training import Recipe


def _zero_or_above_one(bound: float) -> float:
    if 0 < bound <= 1:
        raise ValueError("expected 0, for none, or a bound above 1 (3 is usual): one of at most 1 clips tokens that did not move")
    return bound


DualClip = Annotated[float, Field(ge=0), AfterValidator(_zero_or_above_one)]


class UpdateSettings(Recipe):
    """The options of one update, as the job file (`tasks.trainer.job.Job`) holds them."""

    seed: int = 0
    """Seed of the order of samples."""
    threads: int = Field(0, ge=0)
    """CPU threads of each trainer process; 0: torch's default, which OMP_NUM_THREADS sets."""
    warmup_steps: int = Field(2, ge=0)
    """Optimizer steps over which the learning rate rises linearly to its full value; 0: no warm-up."""
    proximal: Literal["update", "step"] = "update"
    """Weights of the proximal policy, for samples whose proximal policy is recomputed. update: the weights at the update's start,
    at the cost of a forward pass over these samples. step: the weights at each step's start, which the step computes anyway."""
    dual_clip: DualClip = 0.0
    """Lower bound of a token's objective where its advantage is negative, as a multiple of the advantage (Ye et al. 2020 use 3);
    above 1, or 0 for no bound. It limits the gradient of rejected tokens that became much likelier since they were sampled."""
    importance_bound: float = Field(2.0, gt=1)
    """Upper bound of the importance weight from the recorded behaviour policy to the proximal policy."""
    entropy_weight: float = Field(0.0, ge=0)
    """Weight of the entropy at each sampled token, which the update then raises; 0: no entropy term."""
    max_ratio: float = Field(1000.0, gt=1)
    """Largest ratio of a token's probability to that under the same policies; a step with a larger ratio trains on its written
    text alone, and is refused without any."""
    max_logprob_gap: float = Field(0.1, gt=0)
    """Largest mean difference, in nats times the temperature, between the trainer's and the server's log-probabilities of the
    same tokens under the same weights; a larger one refuses the update. Measured before the first step on up to 64 samples of
    the current version."""
    max_logprob_gap_p99: float = Field(0.5, gt=0)
    """Largest 99th percentile of these differences; a larger one refuses the update. A mean hides a few large errors."""
    settled_weight: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of a settled token; 0: only served and drawn actions teach."""
    settled_min_loss: float = Field(0.0, ge=0)
    """Least mean cross-entropy of a settled text, in nats per token, that is trained on: below it, the policy writes the text
    anyway. Measured at each step, and where a share of the weight is limited also at the update's start. 0: no bound."""
    settled_max_loss: float = Field(0.0, ge=0)
    """Largest mean cross-entropy of a settled text, in nats per token, that is trained on: above it, the text is far from
    anything the policy could write. 0: no bound."""
    context_weight: float = Field(0.0, ge=0)
    """Weight of the language-model loss of a prompt token, relative to 1 for a sampled token; 0: no such loss."""
    context_tokens: int = Field(32, ge=1)
    """Prompt tokens per sample that the language-model loss covers."""
    logit_scale_rate: float = Field(0.0, ge=0)
    """Learning rate of the logarithm of the logits' scale (the model's sharpness), in plain gradient steps; 0: it stays."""

    @model_validator(mode="after")
    def _adapter_holds_all(self) -> Self:
        if self.adapter_rank and self.logit_scale_rate:
            raise ValueError(
                f"logit_scale_rate = {self.logit_scale_rate:g}, expected 0 with adapter_rank = {self.adapter_rank}: the scale "
                "would change the last norm, which the adapter's files do not hold"
            )
        return self
