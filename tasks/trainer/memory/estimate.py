"""Arithmetic estimate of a trainer process's memory: the need of a parallel layout on each card, and the layouts that fit.

"Selected" positions of a micro-batch are those at which the last layer's queries and the logits are computed. The terms are those
of Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section 4, for the layers of this
trainer: no dropout, a gated MLP, attention that keeps no scores. Imports no torch.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from infra.model import adapters
from infra.model.architectures import Architecture

GRADIENT, ADAM, MASTER, STEP = 4, 8, 4, 4
"""Bytes of a trained parameter: its float32 gradient, Adam's two float32 moments, its float32 master beside bfloat16 weights, and
the root of the second moment while a step is taken."""
LOGIT_BYTES = 20
"""Bytes of a logit at the peak of the loss, as measured: the model's own logits and float32 intermediates."""
RESERVED = 0.08
"""Share of a card reserved for the driver, the communication buffers, and the allocator's rounding."""
LEAST_TOKENS, GOOD_TOKENS = 2048, 8192
"""Fewest tokens of a micro-batch in a proposal, and tokens above which a step hardly gets faster."""
GRAIN, MOST_GRAINS = 512, 256
"""Unit of a proposal's tokens, and the largest multiple of it."""
RECOMPUTATIONS: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
ROW_PARALLEL = "o_proj", "down_proj"
"""Linear layers whose input is split over tensor-parallel processes; the output of the others is."""
SELECTED_SHARE = 8
"""A proposal expects at most one selected position for this many tokens."""


@dataclass(frozen=True)
class Layout:
    """How a model is split over processes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def processes(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"TP {self.tensor}, PP {self.pipeline}, DP {self.data}"


@dataclass(frozen=True)
class Means:
    """Megatron's options that save memory in a layout."""

    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass recomputes: none, the MLPs', or those of all layers but the last."""
    sequence: bool = False
    """Whether tensor-parallel processes split norms and residual states by tokens."""
    distributed: bool = False
    """Whether data-parallel processes split masters and moments."""


PLAIN = Means()


@dataclass(frozen=True)
class Trained:
    """The part of a model that an update changes."""

    frozen_layers: int = 0
    """Lowest layers without gradient and moments, with the embeddings."""
    adapter_rank: int = 0
    """Rank of the adapter that is trained in place of the weights; 0: the weights."""


EVERYTHING = Trained()


@dataclass(frozen=True)
class MicroBatchSize:
    """Bounds of a micro-batch."""

    tokens: int
    positions: int
    """Selected positions."""

    @classmethod
    def largest(cls, rows: Sequence[tuple[int, int]], tokens: int, positions: int) -> "MicroBatchSize":
        """Return the largest micro-batch of rows, each its tokens and selected positions, within bounds (`positions` 0: none).

        A row beyond a bound is a micro-batch by itself.
        """
        lengths, selected = zip(*rows, strict=True)
        most = max(max(lengths), min(tokens, sum(lengths)))
        densest = max(places / length for length, places in rows)
        return cls(most, max(max(selected), min(positions or most, ceil(most * densest))))


@dataclass(frozen=True)
class Memory:
    """Bytes of the process with the largest need, by part."""

    weights: int
    masters: int
    gradients: int
    adam: int
    activations: int
    """Activations that the layers keep for the backward pass."""
    logits: int
    """The logits and the loss's intermediates, at the end of a forward pass."""
    backward: int
    """Gradients inside one layer, at the start of a backward pass, when the logits are freed."""
    step: int
    """Intermediates of the optimizer's step, which torch computes for all parameters at once on GPUs, after the backward pass."""

    @property
    def total(self) -> int:
        """The peak: the permanent parts plus the largest temporary part."""
        stays = self.weights + self.masters + self.gradients + self.adam
        return stays + max(self.activations + max(self.logits, self.backward), self.step)


def estimate(
    model: Architecture,
    layout: Layout,
    size: MicroBatchSize,
    *,
    bf16: bool = True,
    trained: Trained = EVERYTHING,
    means: Means = PLAIN,
) -> Memory:
    """Return the memory of the process with the largest need.

    Args:
        bf16: whether matrix products are computed in bfloat16, over float32 masters of the trained parameters.
        means: how memory is saved in this layout.

    Raises:
        ValueError: the model cannot be split this way.
    """
    check(model, layout)
    stages = (_stage(model, layout, size, stage, bf16, trained, means) for stage in range(layout.pipeline))
    return max(stages, key=lambda memory: memory.total)


def check(model: Architecture, layout: Layout) -> None:
    """Refuse a layout that the model's shapes do not allow.

    Raises:
        ValueError: names the size, its value and what was expected.
    """
    for name, size, whole, of in (
        ("tensor_parallel", layout.tensor, model.groups, "key-value heads"),
        ("tensor_parallel", layout.tensor, model.mlp, "columns of the MLP"),
        ("tensor_parallel", layout.tensor, model.vocabulary, "tokens of the vocabulary"),
        ("pipeline_parallel", layout.pipeline, model.layers, "layers"),
    ):
        if whole % size:
            raise ValueError(f"train.{name} = {size}, expected a divisor of the model's {whole} {of}")


def _stage(
    model: Architecture, layout: Layout, size: MicroBatchSize, stage: int, bf16: bool, part: Trained, means: Means
) -> Memory:
    split, width = layout.tensor, 2 if bf16 else 4
    layers = model.layers // layout.pipeline
    first, last = stage == 0, stage == layout.pipeline - 1
    layer = sum(prod(shape) // (split if _is_split(name) else 1) for name, shape in model.layer().items())
    embedding = model.vocabulary * model.hidden // split
    ends = embedding * (int(first) + int(last and not (first and model.tied))) + (model.hidden if last else 0)
    parameters = layers * layer + ends
    frozen_layers = max(0, min(layers, part.frozen_layers - stage * layers))
    if part.adapter_rank:
        trained = (layers - frozen_layers) * _adapter(model, split, part.adapter_rank)
        kept = trained  # the weights, rounded as they compute, need no master: their files hold them
        parameters += trained
    else:
        still = frozen_layers * layer + (embedding * int(first or model.tied) if part.frozen_layers else 0)
        trained, kept = parameters - min(still, parameters), parameters
    own = trained // layout.data if means.distributed else trained
    # Of the layer that the backward pass computes again.
    whole = _layer_bytes(model, layout, width, Means(sequence=means.sequence), part.adapter_rank)
    again = {"none": 0, "selective": whole.mlp, "full": whole.whole}[means.recompute] * size.tokens
    return Memory(
        weights=width * parameters,
        masters=MASTER * (kept - trained + own) if bf16 else 0,
        gradients=GRADIENT * trained,
        adam=ADAM * own,
        activations=_activations(model, layout, size, stage, width, part, means),
        logits=size.positions * model.vocabulary // split * LOGIT_BYTES if last else 0,
        step=STEP * own,
        backward=again + size.tokens * (3 * model.mlp // split + 2 * model.hidden) * width,
    )


def _adapter(model: Architecture, split: int, rank: int) -> int:
    """Return the parameters of a layer's adapter on one of `split` tensor-parallel processes (tasks/trainer/model/adapter.py)."""
    sides = adapters.linears(replace(model, layers=1))
    rows = [shape for name, shape in sides.items() if name.endswith(ROW_PARALLEL)]
    columns = [shape for name, shape in sides.items() if not name.endswith(ROW_PARALLEL)]
    return rank * (sum(width + out // split for out, width in columns) + sum(width // split + out for out, width in rows))


@dataclass(frozen=True)
class _LayerBytes:
    """Activations that a layer keeps for its backward pass, in bytes per token."""

    states: int
    """Input and output of both norms."""
    attention: int
    """Rotated queries and keys, values, output twice."""
    norms: int
    """Queries and keys before their norms."""
    mlp: int
    """Gate and value, the activated gate, their product."""
    adapter: int
    """The states of an adapter's rank between A and B."""

    @property
    def whole(self) -> int:
        """Sum of all parts."""
        return self.states + self.attention + self.norms + self.mlp + self.adapter


def _layer_bytes(model: Architecture, layout: Layout, width: int, means: Means, rank: int) -> _LayerBytes:
    queries, keys = model.heads * model.head, model.groups * model.head
    rows = len(ROW_PARALLEL)
    inner = len(adapters.LINEAR) - rows + rows / (layout.tensor if means.sequence else 1)
    return _LayerBytes(
        states=4 * model.hidden * width // (layout.tensor if means.sequence else 1),
        attention=(3 * queries + 2 * keys) * width // layout.tensor,
        norms=(queries + keys) * width // layout.tensor if model.qk_norm else 0,
        mlp=(0 if means.recompute == "selective" else 4) * model.mlp * width // layout.tensor,
        adapter=int(inner * rank * width),
    )


def _activations(
    model: Architecture, layout: Layout, size: MicroBatchSize, stage: int, width: int, part: Trained, means: Means
) -> int:
    """Return the bytes that a stage keeps for the backward passes of its micro-batches in progress (1F1B)."""
    layers, layer = model.layers // layout.pipeline, _layer_bytes(model, layout, width, means, part.adapter_rank)
    keys, states = model.groups * model.head * width // layout.tensor, layer.states // 4
    total = 0
    for number in range(stage * layers, (stage + 1) * layers):
        if number < part.frozen_layers:
            continue
        if number == model.layers - 1:  # its keys, values and the first norm cover all tokens
            total += size.positions * (layer.whole - layer.norms) + size.tokens * layer.norms
            total += (size.tokens - size.positions) * (2 * states + 2 * keys)
        else:
            total += size.tokens * (states if means.recompute == "full" else layer.whole)
    if stage == layout.pipeline - 1:
        total += 2 * size.positions * states
    return total * (layout.pipeline - stage)


def _is_split(name: str) -> bool:
    """Return whether tensor-parallel processes each hold a part of a layer's tensor."""
    return "norm" not in name and name != "self_attn.o_proj.bias"


@dataclass(frozen=True)
class Proposal:
    """A layout that fits, with the largest micro-batch that does."""

    layout: Layout
    size: MicroBatchSize
    means: Means
    memory: Memory


def propose(model: Architecture, card: int, cards: int, *, bf16: bool = True, trained: Trained = EVERYTHING) -> list[Proposal]:
    """Return the layouts of all cards that fit, the best first.

    First come those with micro-batches of GOOD_TOKENS; of these, those without full recomputation, which costs a third more
    computation; then the fewest parts of the model, then no recomputation. Parts cost communication in every layer (tensor) or
    idle time at both ends of a step (pipeline), data parallelism only a sum of gradients a step. The distributed optimizer and
    sequence parallelism send as much as the sums that they replace, so they are proposed wherever there is something to split.

    Args:
        card: bytes of a card.
    """
    found = []
    for layout in _layouts(model, cards):
        for recompute in RECOMPUTATIONS[: 2 if trained.frozen_layers else 3]:
            means = Means(recompute, sequence=layout.tensor > 1, distributed=layout.data > 1)
            size = largest(model, layout, card, bf16=bf16, trained=trained, means=means)
            if size and size.tokens >= LEAST_TOKENS:
                memory = estimate(model, layout, size, bf16=bf16, trained=trained, means=means)
                found.append(Proposal(layout, size, means, memory))
    return sorted(found, key=_preference)


def _preference(proposal: Proposal) -> tuple[bool, bool, int, int, int]:
    layout, recompute = proposal.layout, proposal.means.recompute
    parts = layout.tensor * layout.pipeline
    small = proposal.size.tokens < GOOD_TOKENS
    return small, recompute == "full", parts, RECOMPUTATIONS.index(recompute), layout.pipeline


def largest(
    model: Architecture, layout: Layout, card: int, *, bf16: bool, trained: Trained = EVERYTHING, means: Means = PLAIN
) -> MicroBatchSize | None:
    """Return the largest micro-batch of a proposal that fits a card; None if even the weights do not fit."""

    def size(grains: int) -> MicroBatchSize:
        return MicroBatchSize(grains * GRAIN, grains * GRAIN // SELECTED_SHARE)

    def needs_too_much(grains: int) -> bool:
        needed = estimate(model, layout, size(grains), bf16=bf16, trained=trained, means=means)
        return needed.total > usable(card)

    grains = bisect_left(range(1, MOST_GRAINS), True, key=needs_too_much)
    return size(grains) if grains else None


def usable(card: int) -> int:
    """Return the bytes of a card that a process may plan with."""
    return int(card * (1 - RESERVED))


def _layouts(model: Architecture, cards: int) -> Iterator[Layout]:
    """Yield the layouts that use all cards and divide the model evenly."""
    for tensor in range(1, cards + 1):
        for pipeline in range(1, cards // tensor + 1):
            layout = Layout(tensor, pipeline, cards // (tensor * pipeline))
            if layout.processes != cards:
                continue
            try:
                check(model, layout)
            except ValueError:
                continue
            yield layout
