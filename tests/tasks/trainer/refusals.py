"""What the trainer refuses, and why: steps, updates, and configurations that it is not built for."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from transformers import Qwen2ForCausalLM

from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model.convert import full_weights
from tasks.trainer.model.engine import Optimization, Parallel, TrainedModel, parallel_state
from tasks.trainer.pretraining.pretrain import Schedule, train
from tasks.trainer.update import ppo, safety
from tasks.trainer.update.batches import micro_batches, minibatches
from tests.tasks.trainer.engines import JOB, engine_of, pretrained
from tests.tasks.trainer.models import OLDER, samples


def check_refusals(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """What stops a step or an update, by its reason, and how many tensors moved although it was refused."""
    engine = engine_of(directory, parallel)
    before = {name: tensor.clone() for name, tensor in full_weights(engine.model)}
    exact, drifted = samples(model, drift=0.0), samples(model, drift=0.4)
    job = JOB.model_copy(update={"minibatch": 4})

    def told(made: list[Sample], **changes: float) -> str:
        try:
            ppo.update(engine, made, job.model_copy(update=changes), {}, ppo.LogitScale(0.5))
        except safety.HarmfulUpdate as error:
            return str(error)
        return ""

    answers: dict[str, object] = {
        "loss": told([s.model_copy(update={"advantage": math.nan}) for s in exact]),
        "ratio": told(drifted, max_ratio=1.0001),
        "zero": told([s.model_copy(update={"advantage": 0.0}) for s in exact]),
    }
    # Older samples alone, whose proximal policy each step finds by itself: what sampled them is what they have moved from.
    older = [s.model_copy(update={"policy_version": OLDER}) for s in drifted]
    at_step = ppo.at_step(older, range(len(older)))
    for name, bound in (("older_ratio", {"max_ratio": 1.0001}), ("older_kl", {"max_kl": 1e-6})):
        try:
            ppo.update(engine, older, job.model_copy(update=bound), at_step, ppo.LogitScale(0.5))
        except safety.HarmfulUpdate as error:
            answers[name] = str(error)
    own = range(parallel_state.get_data_parallel_rank(), len(exact), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(exact, own, 128, {})
    engine.accumulate(ppo.objective(job, ppo.LogitScale(0.0)), batches, (1, 128))
    answers["finite"], answers["not_finite"] = engine.finite(), []
    for broken in (math.nan, -math.inf, math.inf):
        if dist.get_rank() == dist.get_world_size() - 1:
            engine.model.buffers[0].grad_data[7] = broken
        answers["not_finite"].append(engine.finite())
    try:
        engine.apply(1e-3)
    except FloatingPointError as error:
        answers["gradient"] = str(error)
    answers["moved"] = sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(engine.model))
    # Of three minibatches the one with the odd sample is refused, and the others are trained.
    odd = [s.model_copy(update={"advantage": math.nan}) if i == 5 else s for i, s in enumerate(exact)]
    found = ppo.update(engine, odd, job.model_copy(update={"epochs": 1}), {}, ppo.LogitScale(0.5))
    answers |= {"taken": len(found.steps), "notes": found.notes}
    answers |= {"trained": len(found.trained), "odd_trained": 5 in found.trained}
    bounded = job.model_copy(update={"max_kl": 1e-6})
    stopped = ppo.update(engine_of(directory, parallel), exact, bounded, {}, ppo.LogitScale(0.0))
    answers |= {"before_the_kl": len(stopped.steps), "stopped": stopped.notes}
    return answers | {"first_step": stopped.steps[0].model_dump()}


def pretraining(directory: Path, parallel: Parallel) -> list[str]:
    """What Muon says to a model that is split over processes, and pretraining with Adam."""
    rows, schedule = np.zeros((8, 32), np.uint16), Schedule(1e-3, tokens=256)

    def pretrain() -> None:
        train(engine_of(directory, parallel), rows, schedule, 8, 4, lambda t: torch.ones(t.shape), lambda *_: None)

    told = []
    for attempt in (lambda: pretrained(directory, parallel), pretrain):
        try:
            attempt()
        except ValueError as error:
            told.append(str(error))
    return told


def nothing_left(directory: Path, parallel: Parallel) -> str:
    """What a pipeline says whose first stage would have nothing to train."""
    try:
        TrainedModel(json.loads((directory / "config.json").read_text()), parallel, Optimization(1e-3, frozen_layers=1))
    except ValueError as error:
        return str(error)
    return ""


def stretched(directory: Path) -> list[str]:
    """What the engine says to rotary embeddings of other kinds, in today's and in older configurations."""
    plain = {"rope_theta": 1e6}
    told = []
    for change in (
        {"rope_parameters": plain | {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": None, **plain, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ):
        try:
            engine_of(directory, Parallel(), **change)
        except ValueError as error:
            told.append(str(error))
    return told


def with_transformer_engine(directory: Path) -> str:
    """What the engine says where Transformer Engine can be imported."""
    (directory.with_name("installed") / "transformer_engine").mkdir(parents=True)
    sys.path.append(str(directory.with_name("installed")))
    try:
        engine_of(directory, Parallel())
    except NotImplementedError as error:
        return str(error)
    finally:
        sys.path.pop()
    return ""


def check_ended(job: Job) -> dict[str, object]:
    """What an update counts that its bound of KL ends after the first step, and in which order it takes the samples."""
    ended = ppo.run(job.model_copy(update={"output": job.output.with_name("ended"), "max_kl": 1e-6}))
    return ended.model_dump(include={"samples", "skipped", "tokens", "mean_reward"}) | {
        "order": list(next(minibatches(12, 4, 1, job.seed)))
    }
