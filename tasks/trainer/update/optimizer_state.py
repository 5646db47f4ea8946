"""The optimizer's state from one update to the next: Adam's two tensors per weight, and its step counts.

The state tensors have the weights' shapes and are stored as the weights are: whole float32 tensors in Hugging Face's layout.
Each rank writes its share, or rank 0 all of it where machines have disks of their own. Each reads the tensors of its part of the
model, whichever layout of processes wrote them, with the distributed optimizer or without. The checkpoint holds the float32
masters. No random state belongs to an update: its seed gives the order of samples, and nothing else is random.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from infra.model.stored_tensors import StoredTensors
from tasks.trainer.model import process_group
from tasks.trainer.model.convert import gather_on_rank_0, parameter_names, parts_shared, rank_share, shards, stepped_by
from tasks.trainer.model.trained_model import TrainedModel

STATE_TENSORS = ("exp_avg", "exp_avg_sq")
STEPS_NAME = "steps.json"
"""File of Adam's step count by tensor; written last."""


def save(model: TrainedModel, directory: Path) -> None:
    """Write the state atomically; every rank calls it. Frozen layers have none."""
    state, counts, gathers = _state(model), _counts_of_all_ranks(model), process_group.several_machines()
    partial, rank = directory.with_name(directory.name + ".partial"), dist.get_rank()
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    names_of = dict(parameter_names(model.megatron))
    for kind in STATE_TENSORS:

        def tensor_of(parameter: torch.Tensor, kind: str = kind) -> torch.Tensor | None:
            if names_of[parameter][0] not in counts:
                return None
            own, parts = state.get(stepped_by(parameter), {}).get(kind), parts_shared(parameter)
            return own if parts is None else parts.whole(own, parameter)

        if gathers:
            share = gather_on_rank_0(model.megatron, torch.float32, tensor_of=tensor_of)
        else:
            share = rank_share(model.megatron, tensor_of)
        if rank == 0 or not gathers:
            save_file(share, partial / f"{kind}-{rank:05d}.safetensors")
    dist.barrier()
    if rank == 0:
        (partial / STEPS_NAME).write_text(json.dumps(counts, indent=1, sort_keys=True))
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)


def _counts_of_all_ranks(model: TrainedModel) -> dict[str, int]:
    """Return Adam's step counts of all ranks' parts of the model, by the names of the tensors."""
    state = _state(model)
    own = {
        name: int(state[tensor]["step"])
        for parameter, names in parameter_names(model.megatron)
        if (tensor := stepped_by(parameter)) in state
        for name in names
    }
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, own)
    return {name: count for of_rank in counts for name, count in of_rank.items()}


@torch.no_grad()
def load(model: TrainedModel, directory: Path) -> None:
    """Continue from a state that any layout of processes wrote; weights that it does not contain start new.

    Raises:
        ValueError: the folder holds no complete state, or one of another model.
    """
    if not (directory / STEPS_NAME).is_file():
        raise ValueError(f"optimizer = {directory}: no {STEPS_NAME}, expected a folder that an update with keep_optimizer wrote")
    counts = json.loads((directory / STEPS_NAME).read_text())
    state = _state(model)
    for parameter, names in parameter_names(model.megatron):
        tensor = stepped_by(parameter)
        if tensor is not None and parameter.requires_grad and all(name in counts for name in names):
            state[tensor] = {"step": torch.tensor(float(counts[names[0]]))}
    for kind in STATE_TENSORS:
        stored = StoredTensors(directory.glob(f"{kind}-*.safetensors"))
        if missing := sorted(counts.keys() - stored.keys()):
            raise ValueError(
                f"optimizer = {directory}: {STEPS_NAME} counts steps of {missing[0]}, whose {kind} is in no file; fetch the "
                "folder again, or train without keep_optimizer"
            )
        for parameter, tensor in shards(model.megatron, stored):
            if (entry := state.get(stepped_by(parameter))) is not None:
                parts = parts_shared(parameter)
                own = tensor if parts is None else parts.own(tensor)
                assert own is not None, "a parameter that this rank steps has a part here"
                entry[kind] = own.to(parameter.device, torch.float32, copy=True).contiguous()


def _state(model: TrainedModel) -> Any:
    """Return the state of torch's AdamW, by parameter."""
    (optimizer,) = model.optimizer.chained_optimizers
    return optimizer.optimizer.state
