"""What a training job is given: the contract between the flow and the trainer's processes. Importing it imports no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.settings.schema import DualClip

JOB_NAME, METRICS_NAME, CHECKPOINT_NAME, OPTIMIZER_NAME = "job.json", "metrics.json", "checkpoint", "optimizer"
REFUSED_NAME = "refused.txt"
"""Why an update was refused, in place of a checkpoint and metrics."""


class Job(BaseModel):
    """One PPO update, resolved: written beside its output."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checkpoint: Path
    """Policy to train further, in Hugging Face layout."""
    samples: Path
    """Parquet of infra.records.Sample rows."""
    output: Path
    """Folder that gets checkpoint/, optimizer/ where it is kept, and metrics.json last of all."""
    optimizer: Path | None = None
    """Folder of the optimizer's state at `checkpoint`, to go on from; none: the optimizer starts from nothing."""
    keep_optimizer: bool = False
    """Whether the optimizer's state is written, twice the size of the weights."""
    current_version: str
    """Version of `checkpoint`: log-probability agreement is measured on the samples it made."""
    tensor_parallel: int = 1
    """Megatron tensor-parallel size."""
    pipeline_parallel: int = 1
    """Megatron pipeline-parallel size."""
    precision: Literal["float32", "bfloat16", "fastest"] = "float32"
    """What the products are computed in, float32 masters beside it; fastest: bfloat16 on GPUs and on CPUs that are
    faster in it (those with AMX, and AMD's with AVX512-BF16)."""
    learning_rate: Annotated[float, Field(gt=0)]
    """Learning rate after the warm-up."""
    warmup_steps: int = 2
    """Steps of linear warm-up."""
    epochs: Annotated[int, Field(ge=1)] = 2
    """Passes over the samples."""
    minibatch: Annotated[int, Field(ge=1)] = 256
    """Samples of one optimizer step, over all data-parallel ranks."""
    micro_batch_tokens: Annotated[int, Field(ge=64)] = 8192
    """Token budget of a micro-batch, with what fills it."""
    proximal: Literal["update", "step"] = "update"
    """Weights that the policy is held near, for samples whose proximal policy is recomputed: those at the update's or at each
    step's start."""
    recomputed: Literal["older", "all"] = "older"
    """Samples whose proximal policy is recomputed; the others are held near what the server recorded."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: DualClip = 0.0
    """A rejected token's objective is not below this times its advantage; above 1, or 0 for no such bound."""
    importance_bound: float = 2.0
    """Bound of the importance weight from the behaviour policy to the proximal one."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the estimated KL(policy || reference) of a sampled token; 0: none."""
    reference: Path | None = None
    """Checkpoint that the KL is taken to, in Hugging Face layout; none: `checkpoint`, where the update starts."""
    entropy_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy at a sampled token, which the update raises; 0: none."""
    max_kl: Annotated[float, Field(ge=0)] = 0.0
    """The update ends before a step whose samples show a larger StepMetrics.kl; 0: it never does."""
    max_ratio: Annotated[float, Field(gt=1)] = 1000.0
    """A step whose ratio_max is above this is refused."""
    max_logprob_gap: Annotated[float, Field(gt=0)] = 0.1
    """An update is refused where the trainer's and the server's log-probabilities differ by more than this on average."""
    max_logprob_gap_p99: Annotated[float, Field(gt=0)] = 0.5
    """It is refused, too, where one token in a hundred differs by more than this."""
    context_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the language-model loss of a prompt token, beside 1 for the surrogate of a sampled one; 0: none."""
    context_tokens: Annotated[int, Field(ge=1)] = 32
    """Prompt tokens of each sample that the language-model loss is taken on."""
    logit_scale_rate: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate of the logarithm of the logits' scale, in plain gradient steps; 0: it stays."""
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    """Lowest layers that stay as they are, the embeddings with them; 0: everything is trained."""
    max_grad_norm: float = 1.0
    """Gradient clipping."""
    seed: int = 0
    """Seed of the order of samples."""
    threads: int = 0
    """CPU threads of a process; 0: torch's own choice."""


class StepMetrics(BaseModel):
    """One optimizer step."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    loss: float
    """Mean clipped surrogate per token, negated, with the KL and entropy terms that have a weight."""
    reward: float
    """Mean reward of the step's samples."""
    advantage_mean: float
    """Mean advantage of the step's samples."""
    advantage_deviation: float
    """Standard deviation of their advantages."""
    ratio_p01: float
    """A token's probability over that under its anchor, which is the policy that it is held near or, where each step takes its
    own, the one that sampled it: the smallest hundredth is below this."""
    ratio_median: float
    """Its median."""
    ratio_p99: float
    """The largest hundredth is above this."""
    ratio_max: float
    """The largest."""
    clip_fraction: float
    """Share of tokens whose ratio to the proximal policy was clipped."""
    context_loss: float
    """Mean language-model loss on tokens of the prompts, in nats; 0 where it has no weight."""
    kl: float
    """Estimate of KL(anchor || policy) per token, (r - 1) - ln r with the ratio r above (Schulman 2020, "Approximating KL
    divergence", k3)."""
    reference_kl: float
    """Estimate of KL(policy || reference) per token; 0 where it has no weight."""
    entropy: float
    """Mean entropy of the sampling distribution at the sampled tokens' places, over the whole vocabulary, in nats."""
    effective_samples: float
    """Effective sample size of the tokens' weights policy / behaviour, (sum w)^2 / (N sum w^2), from 0 to 1 (Kong 1992)."""
    behaviour_gap: float
    """Mean absolute difference of the policy's and the server's log-probability, the update's own way and older versions' in it:
    trainer and server alone are compared before the first step (Metrics.logprob_difference_mean)."""
    gradient_norm: float
    """Before clipping."""
    logit_scale: float
    """What the logits are multiplied by after this step."""
    learning_rate: float
    """At this step."""
    tokens: int
    """Completion tokens."""
    seconds: float
    """Wall-clock time of the step."""
    cpu_seconds: float
    """Processor time of one of the processes, all of its threads."""
    tokens_per_second: float
    """Tokens of prompts and completions over that time."""
    efficiency: float
    """Share of the processors' arithmetic that the model's own operations took: MFU on GPUs, of the best product on CPUs."""


class Metrics(BaseModel):
    """metrics.json: what the update did."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    samples: int
    """Samples trained on, in a step that was taken."""
    skipped: int = 0
    """Samples of steps that were refused or left out, trained on in no epoch. Later windows begin after them: they do not come
    back."""
    tokens: int
    """Completion tokens in those trained on."""
    mean_reward: float
    """Their mean reward."""
    entropy: float
    """Mean of -log-probability of the sampled tokens under the starting policy, in nats."""
    importance_clipped: float
    """Share of tokens whose importance weight met its bound."""
    logprob_difference_mean: float | None
    """Mean absolute difference of the trainer's and the server's log-probability, of the same tokens under the same weights,
    before the first step; none without samples of the current version."""
    logprob_difference_p99: float | None = None
    """One token in a hundred differs by more than this."""
    logprob_difference_max: float | None
    """Largest such difference."""
    steps: tuple[StepMetrics, ...]
    """Those that were taken, in order."""
    notes: tuple[str, ...] = ()
    """Steps that were refused and an early end, each with its reason."""
    seconds: dict[str, float]
    """Wall-clock seconds by phase."""
