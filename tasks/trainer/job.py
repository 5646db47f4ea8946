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
    base: Path | None = None
    """Checkpoint that `checkpoint` is an adapter of, with `adapter`."""
    adapter: Path | None = None
    """Folder of the adapter that `checkpoint` has merged, which the update trains on; none: a new adapter of `checkpoint`."""
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
    """Mean loss of a served, drawn or settled token, all terms with their weights."""
    reward: float | None = None
    """Mean reward of the step's served and drawn actions; none without any, as each value up to `behaviour_gap` but those named
    otherwise."""
    advantage_mean: float | None = None
    """Mean advantage of the same actions."""
    advantage_deviation: float | None = None
    """Standard deviation of their advantages."""
    ratio_p01: float | None = None
    """1st percentile of the ratios."""
    ratio_median: float | None = None
    """Median of the ratios."""
    ratio_p99: float | None = None
    """99th percentile of the ratios."""
    ratio_max: float | None = None
    """Largest ratio."""
    clip_fraction: float | None = None
    """Share of tokens whose ratio to the proximal policy was clipped."""
    settled_loss: float | None = None
    """Mean cross-entropy of the settled tokens, in nats, including those outside the band; none without any."""
    settled_inside: float | None = None
    """Share of the settled tokens in rows inside the band; none without a band."""
    context_loss: float | None = None
    """Mean language-model loss on prompt tokens, in nats; none where it has no weight."""
    kl: float | None = None
    """Estimate of the KL divergence of policy and anchor per token, (ln r)^2 / 2 of the ratio r (Schulman 2020, "Approximating KL
    divergence", k2)."""
    drift: float | None = None
    """The same of ln r times the action's temperature, the size of the change at temperature 1; `max_kl` bounds its mean over the
    latest tokens."""
    reference_kl: float | None = None
    """Estimate of KL(policy || reference) per token; none where it has no weight."""
    entropy: float | None = None
    """Mean entropy of the sampling distribution at the sampled tokens' positions, over the whole vocabulary, in nats."""
    effective_samples: float | None = None
    """Effective sample size of the tokens' weights w = policy / behaviour, (sum w)^2 / (N sum w^2), from 0 to 1 (Kong 1992)."""
    behaviour_gap: float | None = None
    """Mean absolute difference of the policy's and the server's log-probability, in nats. It includes how far the policy has
    moved; Metrics.logprob_difference_mean compares trainer and server alone."""
    drawn_clip_fraction: float | None = None
    """`clip_fraction` of the drawn actions; none without any, as the next two."""
    drawn_kl: float | None = None
    """`kl` of the drawn actions."""
    drawn_effective_samples: float | None = None
    """`effective_samples` of the drawn actions."""
    served_clip_fraction: float | None = None
    """`clip_fraction` of the served actions; none without any, as the next two."""
    served_kl: float | None = None
    """`kl` of the served actions."""
    served_effective_samples: float | None = None
    """`effective_samples` of the served actions."""
    gradient_norm: float
    """Norm of the gradient before clipping."""
    logit_scale: float | None = None
    """Factor of the logits after this step; none where it stays."""
    learning_rate: float
    """Learning rate of this step."""
    tokens: int
    """Tokens of served and drawn actions."""
    drawn_tokens: int = 0
    """Those of drawn actions among them."""
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
    """Samples in no step that was taken: those without a text that teaches, those of refused steps, and of steps after an early
    end. They are never used, since later windows begin after them."""
    tokens: int
    """Served and drawn tokens that taught."""
    settled_tokens: int = 0
    """Settled tokens of the samples trained on."""
    drawn: int = 0
    """Drawn actions that taught."""
    mean_reward: float | None
    """Mean reward of the served and drawn actions that taught; none without any, as the next two."""
    entropy: float | None
    """Mean of -log-probability of their tokens as recorded, in nats."""
    importance_clipped: float | None
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
    """Refused steps, steps without their rewarded actions, and an early end of these, each with its reason."""
    seconds: dict[str, float]
    """Wall-clock seconds by phase."""
