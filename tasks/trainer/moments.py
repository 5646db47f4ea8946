"""The optimizer's state across updates: Adam's moments and step counts, beside a checkpoint's weights.

Moments have the shapes of the weights, so they are kept as the weights are: whole float32 tensors in Hugging Face's layout. Each
rank writes its share of them, and reads what its part of the model is made of, whichever layout of processes wrote it. The
float32 masters are the checkpoint itself, and no random numbers belong to an update: the order of samples follows from its seed,
and nothing else draws any.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tasks.trainer.convert import Stored, names, shards, share, trained
from tasks.trainer.engine import Engine

MOMENTS = ("exp_avg", "exp_avg_sq")
STEPS_NAME = "steps.json"
"""Adam's step count of each tensor; written last."""


def save(engine: Engine, directory: Path) -> None:
    """Write the state, whole or not at all; every rank calls it. What was never stepped, frozen layers, has none."""
    state = _state(engine)
    partial, rank = directory.with_name(directory.name + ".partial"), dist.get_rank()
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    for moment in MOMENTS:

        def of(parameter: torch.Tensor, moment: str = moment) -> torch.Tensor | None:
            return state.get(trained(parameter), {}).get(moment)

        save_file(share(engine.model, of), partial / f"{moment}-{rank:05d}.safetensors")
    counts = {n: int(state[trained(p)]["step"]) for p, tensors in names(engine.model) if trained(p) in state for n in tensors}
    written: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(written, counts)  # comes back once every rank has written
    if rank == 0:
        merged = {name: count for counts in written for name, count in counts.items()}
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
        stored = Stored(directory.glob(f"{moment}-*.safetensors"))
        if missing := sorted(counts.keys() - stored.keys()):
            raise ValueError(f"optimizer = {directory}: {STEPS_NAME} counts steps of {missing[0]}, whose {moment} is in no file")
        for parameter, tensor in shards(engine.model, stored):
            if (kept := state.get(trained(parameter))) is not None:
                kept[moment] = tensor.to(parameter.device, torch.float32, copy=True).contiguous()


def _state(engine: Engine) -> Any:
    """torch's AdamW's own, by tensor."""
    (optimizer,) = engine.optimizer.chained_optimizers
    return optimizer.optimizer.state
