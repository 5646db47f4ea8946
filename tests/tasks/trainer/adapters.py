"""Compares adapters with `peft` on transformers: log-probabilities, gradients, a step, files. For trainer processes only."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import PreTrainedModel

from infra.model import adapters
from infra.model.adapter_files import merge
from infra.model.architectures import parse
from infra.model.stored_tensors import WEIGHTS
from infra.storage.store import sha256
from tasks.trainer.job import Job
from tasks.trainer.model.convert import full_weights, load_weights
from tasks.trainer.model.process_group import Parallel, parallel_state
from tasks.trainer.model.trained_model import Optimization, TrainedModel
from tasks.trainer.update import optimizer_state, ppo
from tasks.trainer.update.batches import NO_POLICIES, FixedPolicies, context_positions, micro_batches
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.logprobs import current_logprobs, proximal_logprobs
from tests.tasks.trainer.models import OLDER, logprobs, reference_loss, samples, synthetic_reference
from tests.tasks.trainer.parity import gap_to, main_gradient, once
from tests.tasks.trainer.state import FIRST, SECOND, largest_difference
from tests.tasks.trainer.trained_models import JOB, Variant

RANK = 4
Tensors = dict[str, torch.Tensor]


def values(config: dict[str, Any]) -> Tensors:
    """Return random tensors of an adapter whose every matrix affects the output."""
    generator = torch.Generator().manual_seed(9)
    shapes = adapters.tensors(parse(config, "the model"), RANK)
    return {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def with_peft(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a copy of a model with an adapter of `peft`, of these tensors; it answers as the model does."""
    targets = [name.rpartition(".")[2] for name in adapters.LINEAR]
    wrapped = get_peft_model(copy.deepcopy(model), LoraConfig(r=RANK, lora_alpha=adapters.ALPHA, target_modules=targets))
    with torch.no_grad():
        for name, parameter in trainable(wrapped).items():
            parameter.copy_(tensors[name])
    return wrapped


def trainable(wrapped: torch.nn.Module) -> Tensors:
    """Return the trained parameters of a model with an adapter, by Hugging Face name."""
    return {
        name.removeprefix(adapters.PREFIX).replace(".default", ""): parameter
        for name, parameter in wrapped.named_parameters()
        if parameter.requires_grad
    }


def adapted(directory: Path, variant: Variant, bf16: bool = False, frozen_layers: int = 0) -> TrainedModel:
    """Load a saved model into the trainer's model with a new adapter."""
    optimization = Optimization(
        JOB.learning_rate, bf16=bf16, distributed=variant.distributed, adapter_rank=RANK, frozen_layers=frozen_layers
    )
    config = json.loads((directory / "config.json").read_text())
    trained = TrainedModel(config, variant.parallel, optimization, recompute=variant.recompute)
    trained.make_optimizer()
    trained.load(directory)
    return trained


def expected(model: PreTrainedModel, tensors: Tensors) -> dict[str, Any]:
    """Return log-probabilities with peft's adapter, the plain objective's loss, its gradients, and the adapter after one step of
    torch's AdamW."""
    rows, wrapped = samples(model, drift=0.4), with_peft(model, tensors)
    with torch.no_grad():
        exact = [logprobs(wrapped, sample) for sample in rows]
    prompted = [context_positions(sample, JOB.context_tokens) for sample in rows]
    parameters = trainable(wrapped)
    optimizer = torch.optim.AdamW(parameters.values(), JOB.learning_rate, (0.9, 0.95), weight_decay=0.0)
    loss = reference_loss(wrapped, rows, JOB, prompted).loss
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None}
    torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
    optimizer.step()
    stepped = {name: p.detach() for name, p in parameters.items()}
    return {"logprobs": exact, "loss": loss.item(), "gradients": gradients, "stepped": stepped}


def check_adapter(directory: Path, model: PreTrainedModel, variant: Variant) -> dict[str, float]:
    """Compare log-probabilities, loss, gradients of A and B, and one step with peft's; count frozen tensors that moved."""
    tensors, rows = values(model.config.to_dict()), samples(model, drift=0.4)
    wanted = once(directory, "adapter", lambda: expected(model, tensors))
    trained = adapted(directory, variant)
    at_start = gap_to(model, rows, current_logprobs(trained, rows, range(len(rows)), 128))
    load_weights(trained.megatron, tensors, partly=True)
    own_logprobs = current_logprobs(trained, rows, range(len(rows)), 128)
    older = [i for i, s in enumerate(rows) if s.policy_version == OLDER]
    policies = FixedPolicies(proximal_logprobs(trained, rows, older, JOB), synthetic_reference(rows))
    own = range(parallel_state.get_data_parallel_rank(), len(rows), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(rows, own, 128, policies, JOB.context_tokens, settled=True)
    totals = ppo.total(trained.accumulate(ppo.objective_step(JOB, LogitScale(0.0)), batches, (1, 128)))
    actual = dict(full_weights(trained.megatron, lambda p: main_gradient(p) if p.requires_grad else None))
    before = {name: tensor.clone() for name, tensor in full_weights(trained.megatron)}
    trained.apply(JOB.learning_rate)
    after = dict(full_weights(trained.megatron))
    moved = [(after[name] - tensors[name], wanted["stepped"][name] - tensors[name]) for name in tensors]
    apart = sum((ours - theirs).square().sum().item() for ours, theirs in moved)
    return {
        "at_start": at_start,
        "logprobs": max((wanted["logprobs"][i] - torch.tensor(own_logprobs[i])).abs().max().item() for i in range(len(rows))),
        "tensors": len(actual),
        "missing": len(actual.keys() ^ wanted["gradients"].keys()),
        "gradients": max(((actual[n] - g).norm() / g.norm()).item() for n, g in wanted["gradients"].items()),
        "loss": totals.sums.loss / totals.sums.tokens,
        "wanted_loss": wanted["loss"],
        "step": (apart / sum(theirs.square().sum().item() for _, theirs in moved)) ** 0.5,
        "frozen_moved": sum(not torch.equal(after[name], before[name]) for name in before.keys() - tensors.keys()),
        **saved(trained, directory, after),
    }


def check_bf16(directory: Path, model: PreTrainedModel) -> dict[str, float]:
    """Compare log-probabilities in bfloat16 with peft's, and what is saved with float32; count masters of frozen weights."""
    tensors, rows = values(model.config.to_dict()), samples(model, drift=0.4)
    trained = adapted(directory, Variant(Parallel()), bf16=True)
    load_weights(trained.megatron, tensors, partly=True)
    return {
        "logprobs": gap_to(with_peft(model, tensors), rows, current_logprobs(trained, rows, range(len(rows)), 128)),
        "masters": sum(hasattr(p, "main_param") and not p.requires_grad for p in trained.megatron.parameters()),
        **saved(trained, directory, tensors),
    }


def check_resumed(directory: Path, model: PreTrainedModel, variant: Variant) -> dict[str, float]:
    """Compare two updates of an adapter with and without a break between them; as `state.check_resumed`."""
    rows, folder = samples(model, drift=0.0), directory.with_name(f"{directory.name}, resumed adapter of {dist.get_world_size()}")

    def second(trained: TrainedModel) -> Tensors:
        ppo.update(trained, rows, SECOND, NO_POLICIES, LogitScale(0.0))
        return tensors_of(trained)

    straight = adapted(directory, variant)
    ppo.update(straight, rows, FIRST, NO_POLICIES, LogitScale(0.0))
    straight.save_adapter(folder / "adapter")
    optimizer_state.save(straight, folder / "optimizer")
    dist.barrier()
    wanted, apart = second(straight), {}
    for name in ("resumed", "without"):
        resumed = adapted(directory, variant)
        resumed.load(directory, folder / "adapter")
        if name == "resumed":
            optimizer_state.load(resumed, folder / "optimizer")
        first, last = tensors_of(resumed), second(resumed)
        apart[name] = largest_difference(wanted, last)
    resumed.interpolate(0.25)
    apart["between"] = largest_difference({name: first[name].lerp(last[name], 0.25) for name in first}, tensors_of(resumed))
    return apart | {"tensors": len(wanted)}


def tensors_of(trained: TrainedModel) -> Tensors:
    """Return copies of the adapter's tensors."""
    return {name: tensor.clone() for name, tensor in full_weights(trained.megatron) if ".lora_" in name}


def saved(trained: TrainedModel, directory: Path, after: Tensors) -> dict[str, float]:
    """Save the checkpoint and its adapter; compare the checkpoint with base + BA, and with the merged files."""
    folder = directory.with_name(f"{directory.name}, adapter of {dist.get_world_size()}")
    trained.save_adapter(folder / "adapter")
    trained.save(folder / "checkpoint", torch.float32)
    answers = {}
    if dist.get_rank() == 0:
        merge(directory, folder / "adapter", folder / "merged")
        ours, theirs, base = (load_file(place / WEIGHTS) for place in (folder / "checkpoint", folder / "merged", directory))
        exact = {name: tensor.double() for name, tensor in base.items()}
        for linear in adapters.linears(trained.architecture):
            a, b = (after[name].double() for name in adapters.names(linear))
            exact[f"{linear}.weight"] += adapters.scale(RANK) * b @ a
        answers = {
            "merged_apart": sum(not torch.equal(ours[name], theirs[name]) for name in ours) + len(ours.keys() ^ base.keys()),
            "merged_error": max((ours[name] - exact[name]).abs().max().item() for name in ours),
        }
    dist.barrier()
    return answers


def sum_of(file: Path) -> str:
    """Return the checksum of a file, of tensors without the metadata, whose order is not fixed."""
    if file.suffix != ".safetensors":
        return sha256([file.read_bytes()])
    return sha256(part for name, tensor in sorted(load_file(file).items()) for part in (name.encode(), tensor.numpy().tobytes()))


def check_updates(job: Job) -> list[dict[str, Any]]:
    """Run an update with an adapter twice; return the sums of its files, and its metrics' samples and gradient norms."""
    answers = []
    for number in (1, 2):
        output = job.output.with_name(f"adapter {number}")
        metrics = ppo.run(job.model_copy(update={"adapter_rank": RANK, "output": output}))
        files = [file for file in sorted(output.rglob("*")) if file.suffix in (".json", ".safetensors")]
        sums = {str(file.relative_to(output)): sum_of(file) for file in files if file.name != "metrics.json"}
        answers.append({"files": sums, "samples": metrics.samples, "norms": [step.gradient_norm for step in metrics.steps]})
    return answers
