"""Settings of the trainer: the options of one update, and how the flow starts it."""

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from infra.settings.section import Directory, Section

ENDPOINT = re.compile(r"([^\s:/@\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
"""HOST:PORT."""


class Recipe(Section):
    """The options of one update that a team sets. The trainer has more (`tasks.trainer.options.UpdateSettings`)."""

    tensor_parallel: int = Field(1, ge=1)
    """Megatron tensor-parallel size."""
    pipeline_parallel: int = Field(1, ge=1)
    """Megatron pipeline-parallel size."""
    sequence_parallel: bool = False
    """Split norms and residual states by tokens over the tensor-parallel processes (Megatron's sequence parallelism): less memory
    at the same communication. It needs `tensor_parallel` above 1."""
    distributed_optimizer: bool = False
    """Split the float32 masters and Adam's moments, 12 bytes of a parameter, over the data-parallel processes (Megatron's
    distributed optimizer). Off: each process holds them whole. Either reads the state that the other stored."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass computes again, and does not keep. selective: those of the MLPs. full: those of all
    layers but the last, whose positions are selected; a third more computation. `tabloop memory` proposes one."""
    share_of_time: float = Field(1.0, gt=0, le=1)
    """Largest share of the time in which each trainer process computes: it pauses after each micro-batch, for an engine on the
    same GPU. On a CPU the trainer's processes have a lower priority as it is."""
    precision: Literal["float32", "bfloat16", "fastest"] = "float32"
    """Data type of the matrix products; the master weights are float32. fastest: bfloat16 on GPUs and on CPUs that compute it
    faster (Intel's with AMX, AMD's with AVX512-BF16), float32 elsewhere."""
    stored_mantissa: int = Field(23, ge=8, le=23)
    """Bits of the mantissa to which a candidate's float32 weights are rounded as they are stored, before anything evaluates or
    serves them; 23: all bits. 15: by at most 2^-16 of a weight, and what travels between versions is a third smaller."""
    learning_rate: float = Field(2e-6, gt=0)
    """Learning rate after a warm-up of two steps."""
    final_rate: float = Field(1.0, ge=0, le=1)
    """Share of the learning rate that remains at the last step, reached linearly; 1: no decay."""
    epochs: int | float = Field(2, ge=1)
    """Passes over a cycle's samples. A last pass of a part, such as the 0.5 of 1.5, takes that share of the written texts: those
    that moved the weights most in the pass before. Places with drawn or served actions are in every pass."""
    minibatch: int = Field(256, ge=1)
    """Places of one optimizer step, over all data-parallel ranks; the drawn actions of a place are in its step."""
    micro_batch_tokens: int = Field(8192, ge=64)
    """Most tokens of a micro-batch, prompts and padding included; a longer sample is a micro-batch by itself."""
    micro_batch_positions: int = Field(0, ge=0)
    """Most positions of a micro-batch at which logits are computed (those of sampled, settled and language-model tokens), each of
    which takes 20 bytes times the vocabulary; 0: no bound. `tabloop memory` proposes both bounds."""
    recomputed: Literal["older", "all"] = "older"
    """Samples whose proximal policy is recomputed. older: samples of earlier versions; for the current version's the server's
    log-probabilities are taken as exact. all: every sample, so that the importance weight also corrects differences between
    trainer and server (bfloat16, another implementation)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """PPO clips the ratio below 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """PPO clips the ratio above 1 + clip_high."""
    kl_weight: float = Field(0.0, ge=0)
    """Weight of the estimated KL divergence from the reference policy, per sampled token; 0: no KL term."""
    max_kl: float = Field(0.0, ge=0)
    """Bound of the drift: KL divergence of the latest served and drawn tokens, in nats per token at temperature 1, from which on
    they teach no more. The step that exceeds it and all later ones train on written text alone; without any, the update ends.
    Measured from the proximal policy, or from the behaviour policy where each step takes its own. Written text moves the policy,
    too: a bound below what it does alone ends the part of the rewards early. 0: no bound."""
    actions: tuple[Literal["written", "served", "drawn"], ...] = Field(("written", "served", "drawn"), min_length=1)
    """Actions of a place that teach. written: the settled text. served: what was shown there. drawn: what the cycle draws from
    the parent (`train.groups`), and silence."""
    surrogate_weight: float = Field(1.0, ge=0)
    """Weight of the clipped surrogate of served and drawn actions, relative to 1 for the written text; 0: only settled text
    teaches."""
    settled_exponent: float = Field(0.0, ge=0, le=1)
    """Exponent q of the loss of a settled text of probability p, (1 - p^q) / q: the gradient of the cross-entropy, times p^q.
    1: minus the chance that the policy samples the text; 0: the cross-entropy, -ln p, which spends most of the update on text
    that the policy would hardly ever write."""
    settled_beginnings: float = Field(0.0, ge=0, le=1)
    """Weight of a settled text's beginnings in its loss, one after each token; the whole text has the rest, up to 1. What is
    shown may end early, and then a right beginning is enough. 0: only the whole text counts."""
    interpolation: float = Field(1.0, gt=0, le=1)
    """Share of the way from the parent's weights to those after the last step at which a candidate lies (Wortsman et al. 2022,
    "Robust fine-tuning of zero-shot models"). A step also follows what its few places have by chance, and a shorter way takes
    back more of that than of the lesson. 1: all of the way."""
    frozen_layers: int = Field(0, ge=0)
    """Lowest layers to freeze, with the embeddings; 0: everything is trained."""
    adapter_rank: int = Field(0, ge=0, le=256)
    """Rank of the low-rank adapter that a cycle trains beside all linear layers, in place of the weights: less memory, and less
    computation. A version is then the adapter, and the next update trains it on. Large models want ten times the `learning_rate`
    of full weights. 0: the weights themselves are trained."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm to which larger gradients are clipped."""
    keep_optimizer: bool = False
    """Keep Adam's state, twice the size of the trained tensors, in the object store with each candidate; the update of a child
    version continues from it. Off: every update starts with a new optimizer."""
    megatron_arguments: dict[str, Any] = Field(default={})
    """Arguments of Megatron-core, passed through verbatim to its TransformerConfig and OptimizerConfig (names as there). Names
    that the trainer must set itself are refused."""

    @model_validator(mode="after")
    def _layout_is_whole(self) -> Self:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError(
                "sequence_parallel = true, expected false with tensor_parallel = 1: it splits states over tensor-parallel "
                "processes; raise tensor_parallel, or remove it"
            )
        if self.recompute == "full" and self.frozen_layers:
            raise ValueError(
                f'recompute = "full", expected "none" or "selective" with frozen_layers = {self.frozen_layers}: the first '
                "trained layer would get no gradient; frozen layers keep no activations as it is"
            )
        return self

    @model_validator(mode="after")
    def _probability_weighs(self) -> Self:
        if self.settled_beginnings and not self.settled_exponent:
            raise ValueError(
                f"settled_beginnings = {self.settled_beginnings:g}, expected 0 with settled_exponent = 0: a text's probability "
                "does not change its weight; set settled_exponent, 0.3 for example"
            )
        return self


class Groups(Section):
    """Groups that a cycle draws from the parent at places whose settled text is known (tasks/rewards/sampled_groups.py)."""

    places: int = Field(0, ge=0)
    """Most places of a cycle at which groups are drawn; 0: none. They need a `surrogate_weight`, and "drawn" in `actions`."""
    size: int = Field(8, ge=2)
    """Completions at each place."""
    temperature: float = Field(1.0, gt=0)
    """Temperature at which they are sampled and trained."""


class Train(Recipe):
    """Settings of the cycle's training step."""

    groups: Groups = Groups()
    """Groups that nobody saw."""
    processes: int = Field(1, ge=1)
    """Trainer processes of each node (torchrun's nproc_per_node)."""
    nodes: int = Field(1, ge=1)
    """Machines that train together. The flow's machine is one; on each other, `python -m tasks.trainer.node` waits for updates.
    `folder` is on a disk that they share."""
    rendezvous: str = ""
    """HOST:PORT of the flow's machine as the other nodes reach it, where torchrun's processes find each other; an address of IPv6
    in brackets. Empty with one node."""
    job: Path | None = None
    """Template of the Job of Kubernetes that trains, in JSON or YAML: `nodes` pods with `processes` GPUs each, without a shared
    disk or a `rendezvous`. infra/settings/train_job.json is an example; relative paths start at the repository. None: the flow's
    machine trains."""
    kl_reference: Literal["start", "champion"] = "start"
    """Reference policy of the KL term: the weights that the update starts from, or the champion's."""
    environment: dict[str, str] = Field(default={})
    """Environment variables of the trainer's processes."""
    folder: Directory = Path("var/cycles")
    """Directory of the working files of cycles: samples, logs, and checkpoints until they are registered."""

    @model_validator(mode="after")
    def _processes_hold_the_model(self) -> "Train":
        part, ranks = self.tensor_parallel * self.pipeline_parallel, self.processes * self.nodes
        if ranks % part:
            raise ValueError(
                f"processes = {self.processes}, nodes = {self.nodes}: {ranks} trainer processes, expected a multiple of {part}: "
                f"tensor_parallel = {self.tensor_parallel} and pipeline_parallel = {self.pipeline_parallel} divide the model "
                "among as many; raise processes, or lower one of these"
            )
        return self

    @model_validator(mode="after")
    def _nodes_meet(self) -> "Train":
        if self.nodes > 1 and self.job is None and not ENDPOINT.fullmatch(self.rendezvous):
            raise ValueError(
                f'nodes = {self.nodes}, rendezvous = "{self.rendezvous}": expected HOST:PORT of the flow\'s machine, where the '
                "processes meet, or job, whose pods find each other"
            )
        return self

    @model_validator(mode="after")
    def _groups_teach(self) -> "Train":
        if self.draws and not self.surrogate_weight:
            raise ValueError(
                f"groups.places = {self.groups.places}, expected 0 with surrogate_weight = 0: only the surrogate learns from "
                "groups; set surrogate_weight, 0.5 for example"
            )
        return self

    @model_validator(mode="after")
    def _something_teaches(self) -> "Train":
        if "written" not in self.actions and not (self.surrogate_weight and ("served" in self.actions or self.draws)):
            raise ValueError(
                f'actions = {list(self.actions)}, expected "written" among them with surrogate_weight = '
                f"{self.surrogate_weight:g} and groups.places = {self.groups.places}: nothing would teach; add it, or set both"
            )
        return self

    @property
    def draws(self) -> bool:
        """Whether a cycle draws groups."""
        return self.groups.places > 0 and "drawn" in self.actions
