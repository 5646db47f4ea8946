"""The interface of the flow and the trainer's processes: job.json in, metrics.json out. Does not import torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tasks.trainer.model.megatron_arguments import check_reserved
from tasks.trainer.options import UpdateSettings

JOB_NAME, METRICS_NAME, CHECKPOINT_NAME, OPTIMIZER_NAME = "job.json", "metrics.json", "checkpoint", "optimizer"
ADAPTER_NAME = "adapter"
"""Folder of the adapter, beside the checkpoint that it is merged into."""
REFUSED_NAME = "refused.txt"
"""Reason why an update was refused, in place of a checkpoint and metrics."""


class Job(UpdateSettings):
    """One PPO update: all of its options, with its input and output paths."""

    checkpoint: Path
    """Policy to train further, in Hugging Face layout."""
    samples: Path
    """Parquet of infra.records Sample rows."""
    output: Path
    """Folder that gets checkpoint/, optimizer/ with keep_optimizer, adapter/ with adapter_rank, and metrics.json last."""
    current_version: str
    """Version of `checkpoint`: trainer and server are compared on the samples of this version."""
    reference: Path | None = None
    """Checkpoint of the KL term's reference policy, in Hugging Face layout; none: `checkpoint`."""
    optimizer: Path | None = None
    """Folder of the optimizer's state at `checkpoint`; none: the optimizer starts new."""
    weight_shares: dict[Literal["user", "credential", "project"], float] = Field(default={})
    """Largest share of the update's settled text, weighted as in the loss, of one user, credential and project
    (tasks/trainer/update/caps.py); none or 1: no limit."""

    @field_validator("megatron_arguments")
    @classmethod
    def _check_reserved(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        check_reserved(arguments)
        return arguments


class StepMetrics(BaseModel):
    """One optimizer step. A ratio is a token's probability over that under its anchor.

    The anchor is the proximal policy or, where each step takes its own proximal policy, the policy that sampled the token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    loss: float
    """Mean negated clipped surrogate per sampled token, plus the KL and entropy terms."""
    reward: float
    """Mean reward of the step's samples with sampled tokens."""
    advantage_mean: float
    """Mean advantage of the same samples."""
    advantage_deviation: float
    """Standard deviation of their advantages."""
    ratio_p01: float
    """1st percentile of the ratios."""
    ratio_median: float
    """Median of the ratios."""
    ratio_p99: float
    """99th percentile of the ratios."""
    ratio_max: float
    """Largest ratio."""
    clip_fraction: float
    """Share of tokens whose ratio to the proximal policy was clipped."""
    settled_loss: float = 0.0
    """Mean cross-entropy of the settled tokens, in nats, including those outside the band; 0 without any."""
    settled_inside: float = 0.0
    """Share of the settled tokens in rows inside the band."""
    context_loss: float
    """Mean language-model loss on prompt tokens, in nats; 0 where it has no weight."""
    kl: float
    """Estimate of KL(anchor || policy) per token, (r - 1) - ln r of the ratio r (Schulman 2020, "Approximating KL divergence",
    k3)."""
    reference_kl: float
    """Estimate of KL(policy || reference) per token; 0 where it has no weight."""
    entropy: float
    """Mean entropy of the sampling distribution at the sampled tokens' positions, over the whole vocabulary, in nats."""
    effective_samples: float
    """Effective sample size of the tokens' weights w = policy / behaviour, (sum w)^2 / (N sum w^2), from 0 to 1 (Kong 1992)."""
    behaviour_gap: float
    """Mean absolute difference of the policy's and the server's log-probability, in nats. It includes how far the policy has
    moved; Metrics.logprob_difference_mean compares trainer and server alone."""
    gradient_norm: float
    """Norm of the gradient before clipping."""
    logit_scale: float
    """Factor of the logits after this step."""
    learning_rate: float
    """Learning rate of this step."""
    tokens: int
    """Sampled tokens."""
    settled_tokens: int = 0
    """Settled tokens."""
    seconds: float
    """Wall-clock time of the step."""
    cpu_seconds: float
    """Processor time of one process, all of its threads."""
    tokens_per_second: float
    """Tokens of prompts and completions over the wall-clock time."""
    efficiency: float
    """Share of the processors' peak arithmetic that the model's own operations took: MFU on GPUs; on CPUs, of the fastest matrix
    product."""


class Metrics(BaseModel):
    """metrics.json: the result of an update."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    samples: int
    """Samples trained on, in the steps that were taken."""
    skipped: int = 0
    """Samples in no step that was taken: those of refused steps, and of steps after an early end. They are never used, since
    later windows begin after them."""
    tokens: int
    """Sampled tokens of the samples trained on."""
    settled_tokens: int = 0
    """Settled tokens of the samples trained on."""
    mean_reward: float
    """Mean reward of the samples trained on that have sampled tokens."""
    entropy: float
    """Mean of -log-probability of the sampled tokens as recorded, in nats."""
    importance_clipped: float
    """Share of tokens whose importance weight met its bound."""
    logprob_difference_mean: float | None
    """Mean absolute difference of the trainer's and the server's log-probability, of the same tokens under the same weights,
    before the first step; none without samples of the current version."""
    logprob_difference_p99: float | None = None
    """99th percentile of these differences."""
    logprob_difference_max: float | None
    """Largest of these differences."""
    steps: tuple[StepMetrics, ...]
    """The steps that were taken, in order."""
    notes: tuple[str, ...] = ()
    """Refused steps and an early end, each with its reason."""
    seconds: dict[str, float]
    """Wall-clock seconds by phase."""
