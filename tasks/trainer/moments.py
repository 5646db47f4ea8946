"""The optimizer's state across updates: Adam's moments and step counts, beside a checkpoint's weights.

Moments have the shapes of the weights, so they are kept as the weights are: whole float32 tensors in Hugging Face's layout, one
file a moment. That is the same on any layout of processes, and reads back bit for bit. The float32 masters are the checkpoint
itself, and no random numbers belong to an update: the order of samples follows from its seed, and nothing else draws any.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import load_file, save_file

from tasks.trainer.convert import collected, names, shards, trained
from tasks.trainer.engine import Engine

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS_NAME = "steps.json"
"""Adam's step count of each tensor; written last."""


def save(engine: Engine, directory: Path) -> None:
    """Write the state, whole or not at all; every rank calls it. What was never stepped, frozen layers, has none."""
    state = _state(engine)
    partial = directory.with_name(directory.name + ".partial")
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    for moment in MOMENTS:

        def of(parameter: torch.Tensor, moment: str = moment) -> torch.Tensor | None:
            return state.get(trained(parameter), {}).get(moment)

        tensors = collected(engine.model, torch.float32, of)
        if dist.get_rank() == 0:
            save_file(tensors, partial / f"{moment}.safetensors")
    counts = {n: int(state[trained(p)]["step"]) for p, tensors in names(engine.model) if trained(p) in state for n in tensors}
    stages: list[Any] = [None] * parallel_state.get_pipeline_model_parallel_world_size()
    dist.all_gather_object(stages, counts, group=parallel_state.get_pipeline_model_parallel_group())
    if dist.get_rank() == 0:
        merged = {name: count for stage in stages for name, count in stage.items()}
        (partial / STEPS_NAME).write_text(json.dumps(merged, indent=1, sort_keys=True))
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)


@torch.no_grad()
def load(engine: Engine, directory: Path) -> None:
    """Continue from a state, whatever layout wrote it; what it does not hold starts from nothing.

    Raises:
        ValueError: the folder holds no whole state, or one of another model.
    """
    if not (directory / STEPS_NAME).is_file():
        raise ValueError(f"optimizer = {directory}: no {STEPS_NAME}, expected a folder that an update with keep_optimizer wrote")
    counts = json.loads((directory / STEPS_NAME).read_text())
    state = _state(engine)
    for parameter, tensors in names(engine.model):
        if parameter.requires_grad and all(name in counts for name in tensors):
            state[trained(parameter)] = {"step": torch.tensor(float(counts[tensors[0]]))}
    for moment in MOMENTS:
        for parameter, tensor in shards(engine.model, load_file(directory / f"{moment}.safetensors")):
            if (kept := state.get(trained(parameter))) is not None:
                kept[moment] = tensor.to(parameter.device, torch.float32, copy=True).contiguous()


def _state(engine: Engine) -> Any:
    """torch's AdamW's own, by tensor."""
    (optimizer,) = engine.optimizer.chained_optimizers
    return optimizer.optimizer.state
