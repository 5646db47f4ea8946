"""Collects the trainer's refusals and their reasons: steps, updates, and configurations that it does not support."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import Qwen2ForCausalLM

from evals.base_model.pretrain import BatchSize, Schedule, train
from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model.architecture import known_arguments
from tasks.trainer.model.convert import full_weights
from tasks.trainer.model.megatron_arguments import RECOMPUTE, RESERVED
from tasks.trainer.model.process_group import Parallel, parallel_state
from tasks.trainer.model.trained_model import Optimization, TrainedModel
from tasks.trainer.update import ppo, safety
from tasks.trainer.update.batches import NO_POLICIES, FixedPolicies, micro_batches, minibatches
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.logprobs import at_step
from tasks.trainer.update.targets import without
from tests.tasks.trainer.models import OLDER, samples, with_settled_text
from tests.tasks.trainer.trained_models import JOB, pretrained, trained_model


def check_refusals(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, Any]:
    """Return the reasons that stop a step or an update, and the number of tensors that moved in a refused one."""
    trained = trained_model(directory, parallel)
    before = {name: tensor.clone() for name, tensor in full_weights(trained.megatron)}
    exact, drifted = samples(model, drift=0.0), samples(model, drift=0.4)
    job = JOB.model_copy(update={"minibatch": 4})

    def refusal(rows: list[Sample], **changes: float) -> str:
        try:
            ppo.update(trained, rows, job.model_copy(update=changes), NO_POLICIES, LogitScale(0.5))
        except safety.HarmfulUpdate as error:
            return str(error)
        return ""

    answers: dict[str, Any] = {
        "loss": refusal([s.model_copy(update={"advantage": math.nan}) for s in exact]),
        "ratio": refusal(drifted, max_ratio=1.0001),
        "zero": refusal([s.model_copy(update={"advantage": 0.0}) for s in exact]),
    }
    # Older samples only, whose proximal policy each step computes: their ratios are measured from the behaviour policy.
    older = [s.model_copy(update={"policy_version": OLDER}) for s in drifted]
    policies = FixedPolicies(at_step(older, range(len(older))))
    for name, bound in (("older_ratio", {"max_ratio": 1.0001}), ("older_kl", {"max_kl": 1e-6})):
        try:
            ppo.update(trained, older, job.model_copy(update=bound), policies, LogitScale(0.5))
        except safety.HarmfulUpdate as error:
            answers[name] = str(error)
    own = range(parallel_state.get_data_parallel_rank(), len(exact), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(exact, own, 128)
    trained.accumulate(ppo.objective_step(job, LogitScale(0.0)), batches, (1, 128))
    answers["finite"], answers["not_finite"] = trained.gradient_is_finite(), []
    for broken in (math.nan, -math.inf, math.inf):
        if dist.get_rank() == dist.get_world_size() - 1:
            trained.megatron.buffers[0].grad_data[7] = broken
        answers["not_finite"].append(trained.gradient_is_finite())
    try:
        trained.apply(1e-3)
    except FloatingPointError as error:
        answers["gradient"] = str(error)
    answers["moved"] = sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(trained.megatron))
    # Of three minibatches the one with the odd sample is refused, and the others are trained on.
    odd = [s.model_copy(update={"advantage": math.nan}) if i == 5 else s for i, s in enumerate(exact)]
    result = ppo.update(trained, odd, job.model_copy(update={"epochs": 1}), NO_POLICIES, LogitScale(0.5))
    answers |= {"taken": len(result.steps), "notes": result.notes}
    answers |= {"trained": len(result.trained), "odd_trained": 5 in result.trained}
    bounded = job.model_copy(update={"max_kl": 1e-6})
    stopped = ppo.update(trained_model(directory, parallel), exact, bounded, NO_POLICIES, LogitScale(0.0))
    answers |= {"before_the_kl": len(stopped.steps), "stopped": stopped.notes}
    rows = with_settled_text(exact)
    written = ppo.update(trained_model(directory, parallel), rows, bounded, NO_POLICIES, LogitScale(0.0))
    figures = ppo.metrics_of(rows, len(rows), written, None, {})
    answers |= {"acted": figures.tokens, "of_steps": sum(step.tokens for step in written.steps), "all": figures.samples}
    strict = job.model_copy(update={"max_ratio": 1.0001})
    odd_rows, scale, other = with_settled_text(drifted), LogitScale(0.5), LogitScale(0.5)
    alone = ppo.update(trained_model(directory, parallel), odd_rows, strict, NO_POLICIES, scale)
    bare = [without(row, sampled=True, settled=False) for row in odd_rows]
    plain = ppo.update(trained_model(directory, parallel), bare, job, NO_POLICIES, other)
    answers["norms"] = [[step.gradient_norm for step in result.steps] for result in (alone, plain)]
    answers["scales"] = [scale.factor, other.factor]
    answers |= {"odd_tokens": alone.notes, "without_odd_tokens": [(step.tokens, step.settled_tokens) for step in alone.steps]}
    answers |= {"drifted": written.notes, "after_the_drift": [(step.kl, step.settled_tokens) for step in written.steps[1:]]}
    return answers | {"first_step": stopped.steps[0].model_dump()}


def pretraining(directory: Path, parallel: Parallel) -> list[str]:
    """Return the errors of Muon and of pretraining with Adam for a model split over processes."""
    rows, schedule = np.zeros((8, 32), np.uint16), Schedule(1e-3, tokens=256)

    def pretrain() -> None:
        train(trained_model(directory, parallel), rows, schedule, BatchSize(8, 4), lambda t: torch.ones(t.shape), lambda *_: None)

    errors = []
    for attempt in (lambda: pretrained(directory, parallel), pretrain):
        try:
            attempt()
        except ValueError as error:
            errors.append(str(error))
    return errors


def nothing_left(directory: Path, parallel: Parallel) -> str:
    """Return the error of a pipeline whose first stage has no layer to train."""
    try:
        TrainedModel(json.loads((directory / "config.json").read_text()), parallel, Optimization(1e-3, frozen_layers=1))
    except ValueError as error:
        return str(error)
    return ""


def stretched_rotary(directory: Path) -> list[str]:
    """Return the errors for stretched rotary embeddings, in current and in older configurations."""
    plain = {"rope_theta": 1e6}
    errors = []
    for change in (
        {"rope_parameters": plain | {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": None, **plain, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ):
        try:
            trained_model(directory, Parallel(), **change)
        except ValueError as error:
            errors.append(str(error))
    return errors


def with_transformer_engine(directory: Path) -> str:
    """Return the error that an importable Transformer Engine causes."""
    (directory.with_name("installed") / "transformer_engine").mkdir(parents=True)
    sys.path.append(str(directory.with_name("installed")))
    try:
        trained_model(directory, Parallel())
    except NotImplementedError as error:
        return str(error)
    finally:
        sys.path.pop()
    return ""


def check_ended(job: Job) -> dict[str, Any]:
    """Return the counts of an update that max_kl ends after its first step, and the samples of that step."""
    ended = ppo.run(job.model_copy(update={"output": job.output.with_name("ended"), "max_kl": 1e-6}))
    return ended.model_dump(include={"samples", "skipped", "tokens", "mean_reward"}) | {
        "order": list(next(minibatches(12, 4, 1, job.seed)))
    }


def megatron_arguments(directory: Path, job: Job) -> dict[str, Any]:
    """Return the errors for wrong Megatron arguments, and the values that valid ones reach in Megatron."""
    config = json.loads((directory / "config.json").read_text())

    def build(arguments: dict[str, Any]) -> TrainedModel:
        trained = TrainedModel(config, Parallel(), Optimization(1e-3), arguments)
        trained.make_optimizer()
        return trained

    def refusal(arguments: dict[str, Any]) -> str:
        try:
            build(arguments)
        except ValueError as error:
            return str(error)
        return ""

    wrong: dict[str, dict[str, Any]] = {
        "unknown": {"weight_decoy": 0.1},
        "of the data-parallel configuration": {"bucket_size": 1},
        "reserved": {"lr": 1.0},
        "refused by Megatron": {"bias_activation_fusion": True},
    }
    trained = build({"weight_decay": 0.5, "adam_eps": 1e-4, "disable_bf16_reduced_precision_matmul": True})
    (optimizer,) = trained.optimizer.chained_optimizers
    with_and_without = [
        ppo.run(job.model_copy(update={"output": job.output.with_name(name), "megatron_arguments": arguments}))
        for name, arguments in (("plain", {}), ("recomputed", RECOMPUTE), ("decayed", {"weight_decay": 0.5}))
    ]
    return {
        "errors": {name: refusal(arguments) for name, arguments in wrong.items()},
        "reserved_but_unknown": sorted(RESERVED.keys() - known_arguments()),
        "transformer": trained.config.disable_bf16_reduced_precision_matmul,
        "optimizer": [(group["weight_decay"], group["eps"]) for group in optimizer.param_groups],
        "losses": [[step.loss for step in metrics.steps] for metrics in with_and_without],
    }
