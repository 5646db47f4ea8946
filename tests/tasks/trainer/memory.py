"""Compares the planned memory with the bytes of tensors that a pass really holds. For trainer processes only."""

import json
import weakref
from functools import cache
from pathlib import Path
from typing import Any

from tasks.trainer.model.process_group import Parallel
from tasks.trainer.model.trained_model import Optimization, TrainedModel

# isort: split
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infra.model.architectures import parse
from infra.records import Sample
from tasks.trainer.memory.estimate import Layout, Means, Memory, MicroBatchSize, Trained, estimate
from tasks.trainer.memory.fit import DoesNotFit
from tasks.trainer.update import ppo
from tasks.trainer.update.batches import MicroBatch, micro_batches
from tasks.trainer.update.logit_scale import LogitScale
from tests.tasks.trainer.models import samples, tiny
from tests.tasks.trainer.trained_models import JOB

SHAPES = {
    "wide MLP": {"hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 4},
    "wide states": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3},
    "large vocabulary": {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 16384},
    "untied": {
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "vocab_size": 4096,
        "tie_word_embeddings": False,
    },
}
"""Changes of the tiny model's configuration."""
DEEP = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 12}
"""A shape of whose layers most are computed again."""
RANK = 8
"""Of an adapter."""
PROMPT, COMPLETION = 560, 40
"""Tokens of the micro-batch's prompt and completion: longer than those for which attention keeps its scores."""

STEP = ppo.objective_step(JOB, LogitScale(0.0))


class PeakBytes(TorchDispatchMode):
    """Counts the storages that operations create, until they are freed; `peak` is the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Run an operation and count the storages of its results that are new."""
        inputs = {id(x.untyped_storage()) for x in tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)}
        result = function(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and id(storage := tensor.untyped_storage()) not in self._known | inputs:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def held(model: Any) -> int:
    """Return the bytes that a TrainedModel holds between steps: weights, masters, gradients and Adam's moments."""
    tensors: list[torch.Tensor] = []
    for parameter in model.megatron.parameters():
        tensors += [parameter, *(t for name in ("main_param", "main_grad") if (t := getattr(parameter, name, None)) is not None)]
    for optimizer in getattr(model.optimizer, "chained_optimizers", [model.optimizer]):
        for state in optimizer.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def check_peaks() -> dict[str, dict[str, float]]:
    """Return planned over measured bytes, of what stays between steps and of the peak, for shapes, precisions and means."""
    plain = {
        f"{name}, {'bfloat16' if bf16 else 'float32'}": peak_of(shape, bf16, Means())
        for name, shape in SHAPES.items()
        for bf16 in (False, True)
    }
    of_adapters = {
        f"{name}, {'bfloat16' if bf16 else 'float32'}, adapter": peak_of(shape, bf16, Means(), RANK)
        for name, shape in SHAPES.items()
        for bf16 in (False, True)
    }
    # A CPU without bfloat16 takes ten times as long in it.
    recomputed = {
        f"deep, {means.recompute}{', adapter' if rank else ''}": peak_of(DEEP, False, means, rank)
        for means in (Means("selective"), Means("full"))
        for rank in (0, RANK)
    }
    return plain | of_adapters | recomputed


def check_stays() -> dict[str, float]:
    """Return planned over measured bytes of what stays between steps under the distributed optimizer, in each precision, for
    weights and for an adapter."""
    means = Means(distributed=True)
    answers = {}
    for bf16 in (False, True):
        for rank in (0, RANK):
            config = configuration(SHAPES["untied"])
            trained, batch = stepped(config, bf16, means, rank)
            answers[f"{bf16}, {rank}"] = stays_of(planned_for(config, batch, bf16, means, rank)) / held(trained)
    return answers


def configuration(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the tiny model's configuration with a shape's changes."""
    return tiny().config.to_dict() | {"max_position_embeddings": 1024} | shape


def stepped(config: dict[str, Any], bf16: bool, means: Means, rank: int = 0) -> tuple[TrainedModel, MicroBatch]:
    """Return a model after one step, so that Adam's moments are there, and its micro-batch."""
    optimization = Optimization(1e-4, bf16=bf16, distributed=means.distributed, adapter_rank=rank)
    trained = TrainedModel(config, Parallel(), optimization, recompute=means.recompute)
    trained.make_optimizer()
    (batch,) = micro_batches([long_sample()], range(1), 1 << 20)
    trained.step(STEP, [batch], (1, batch.tokens.numel()), 1e-4)
    return trained, batch


@cache
def long_sample() -> Sample:
    """Return a sample of PROMPT and COMPLETION tokens."""
    row = samples(tiny(), drift=0.0, count=1)[0]
    tokens = {"prompt_token_ids": (1,) * PROMPT, "token_ids": (2,) * COMPLETION, "logprobs": (-1.0,) * COMPLETION}
    return row.model_copy(update=tokens)


def planned_for(config: dict[str, Any], batch: MicroBatch, bf16: bool, means: Means, rank: int = 0) -> Memory:
    """Return the plan of a micro-batch, in data parallelism."""
    size = MicroBatchSize(batch.tokens.numel(), batch.at.numel())
    layout, trained = Layout(data=dist.get_world_size()), Trained(adapter_rank=rank)
    return estimate(parse(config, "the model"), layout, size, bf16=bf16, trained=trained, means=means)


def stays_of(planned: Memory) -> int:
    """Return the planned bytes between steps."""
    return planned.weights + planned.masters + planned.gradients + planned.adam


def peak_of(shape: dict[str, Any], bf16: bool, means: Means, rank: int = 0) -> dict[str, float]:
    """Return planned over measured bytes of one shape."""
    config = configuration(shape)
    trained, batch = stepped(config, bf16, means, rank)
    stays, planned = held(trained), planned_for(config, batch, bf16, means, rank)
    with PeakBytes() as counted:
        trained.accumulate(STEP, [batch], (1, batch.tokens.numel()))
    activations = planned.activations + max(planned.logits, planned.backward)
    return {
        "stays": stays_of(planned) / stays,
        "peak": (stays_of(planned) + activations) / (stays + counted.peak),
    }


def check_refused(directory: Path) -> list[str]:
    """Return the errors of an update with enough memory and with too little."""
    config = json.loads((directory / "config.json").read_text())
    errors = []
    for memory in (1 << 30, 1 << 19):
        try:
            ppo.check_memory(JOB, config, samples(tiny(), drift=0.0), memory)
            errors.append("")
        except DoesNotFit as error:
            errors.append(str(error))
    return errors
