"""Checks of weights and optimizer state: resuming, also in other layouts, kills, frozen layers, gathering and shares."""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from infra.model.stored_tensors import WEIGHTS, StoredTensors
from tasks.trainer.job import CHECKPOINT_NAME, Job
from tasks.trainer.model.convert import full_weights, gather_on_rank_0, rank_share
from tasks.trainer.model.process_group import Parallel, start
from tasks.trainer.model.trained_model import Optimization, TrainedModel
from tasks.trainer.update import optimizer_state, ppo
from tasks.trainer.update.batches import NO_POLICIES
from tasks.trainer.update.logit_scale import LogitScale
from tests.tasks.trainer.models import samples
from tests.tasks.trainer.trained_models import JOB, LAYOUTS, SHARING, restart, trained_model, weights_of

FIRST = JOB.model_copy(update={"minibatch": 4, "warmup_steps": 0, "epochs": 1})
SECOND = FIRST.model_copy(update={"seed": 1})
MOVES = {
    1: [("tensor", "one"), ("pipeline", "one"), ("distributed", "one")],
    2: [("one", "data"), ("tensor", "distributed"), ("data", "tensor"), ("distributed", "pipeline"), ("one", "distributed")],
}
"""Pairs of layouts, from and to, by the number of processes of the second."""


def check_resumed(
    directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path, distributed: bool
) -> dict[str, float]:
    """Compare two updates with and without a break between them; the folder `state` keeps the state for other layouts."""
    rows = samples(model, drift=0.0)
    straight = trained_model(directory, parallel, bf16, distributed)
    before = torch.get_rng_state()
    ppo.update(straight, rows, FIRST, NO_POLICIES, LogitScale(0.0))
    drew = not torch.equal(torch.get_rng_state(), before)
    straight.save(state / "model", torch.float32)
    optimizer_state.save(straight, state / "optimizer")
    dist.barrier()
    ppo.update(straight, rows, SECOND, NO_POLICIES, LogitScale(0.0))
    straight.save(state / "wanted", torch.float32)
    dist.barrier()
    straight.interpolate(0.25)
    return {
        "drew": float(drew),
        "between": largest_difference(between(directory, state / "wanted", 0.25), weights_of(straight)),
        "resumed": resume(model, parallel, bf16, state, distributed),
        "without": resume(model, parallel, bf16, state, distributed, with_state=False),
    }


def resume(
    model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path, distributed: bool, with_state: bool = True
) -> float:
    """Return the largest difference of a weight after the second update from the same update without a break."""
    trained = trained_model(state / "model", parallel, bf16, distributed)
    if with_state:
        optimizer_state.load(trained, state / "optimizer")
    ppo.update(trained, samples(model, drift=0.0), SECOND, NO_POLICIES, LogitScale(0.0))
    return largest_difference(load_file(state / "wanted" / WEIGHTS), weights_of(trained))


def between(start: Path, end: Path, share: float) -> dict[str, torch.Tensor]:
    """Return the weights at a share of the way from one checkpoint to another."""
    first, last = (load_file(place / WEIGHTS) for place in (start, end))
    return {name: first[name].lerp(last[name], share) for name in first}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of a weight."""
    return max((left[name] - right[name]).abs().max().item() for name in left)


def check_halfway(job: Job) -> float:
    """Run a job up to half of the way; return the largest difference of a weight from the middle of parent and candidate."""
    halfway = job.model_copy(update={"output": job.output.with_name("halfway"), "interpolation": 0.5, "logit_scale_rate": 0.0})
    whole = halfway.model_copy(update={"output": job.output.with_name("whole"), "interpolation": 1.0})
    for one in (whole, halfway):
        ppo.run(one)
    start, end, middle = (
        dict(StoredTensors(checkpoint.glob("*.safetensors")))
        for checkpoint in (job.checkpoint, *(one.output / CHECKPOINT_NAME for one in (whole, halfway)))
    )
    return largest_difference({name: start[name].lerp(end[name], 0.5) for name in start}, middle)


def check_moved(model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path, distributed: bool) -> dict[str, Any]:
    """Resume from another layout's state; return what changes when it is written again, and the error for a lost file."""
    answers: dict[str, Any] = {"apart": resume(model, parallel, bf16, state, distributed)}
    trained = trained_model(state / "model", parallel, bf16, distributed)
    optimizer_state.load(trained, state / "optimizer")
    rewritten = state.with_name("again")
    optimizer_state.save(trained, rewritten)
    dist.barrier()
    before, after = (
        {m: StoredTensors(place.glob(f"{m}-*")) for m in optimizer_state.STATE_TENSORS}
        for place in (state / "optimizer", rewritten)
    )
    changed = [
        n
        for m in optimizer_state.STATE_TENSORS
        for n in before[m].keys() | after[m].keys()
        if not torch.equal(before[m][n], after[m][n])
    ]
    counts = [(place / optimizer_state.STEPS_NAME).read_text() for place in (state / "optimizer", rewritten)]
    dist.barrier()
    if dist.get_rank() == 0:
        (rewritten / "exp_avg_sq-00000.safetensors").unlink()
    dist.barrier()
    try:
        optimizer_state.load(trained, rewritten)
        lost = ""
    except ValueError as error:
        lost = str(error)
    return answers | {"changed": len(changed) + (counts[0] != counts[1]), "lost": lost}


def check_moves(model: Qwen2ForCausalLM, states: Path) -> dict[str, list[dict[str, Any]]]:
    """Check every move to this number of processes, in float32 and bfloat16."""
    answers = {}
    for source, target in MOVES[dist.get_world_size()]:
        parallel = LAYOUTS[dist.get_world_size()][target]
        restart(parallel)
        answers[f"{source} to {target}"] = [
            check_moved(model, parallel, bf16, states / source / str(bf16), target in SHARING) for bf16 in (False, True)
        ]
    return answers


def check_killed(job: Job) -> dict[str, object]:
    """Kill an update (SIGKILL) at accesses of its folder and at times between, and run it again; count kills and differences.

    It forks, so it runs before the process group starts.
    """

    def child(act: Callable[[], None]) -> int:
        if not (pid := os.fork()):
            act()
            start(Parallel(), 0)
            ppo.run(job)
            os._exit(0)
        return pid

    def die_at(event: int) -> None:
        """Die at the given access of the folder."""
        remaining = [event]

        def on_event(name: str, arguments: tuple[object, ...]) -> None:
            if name in ("open", "os.mkdir", "os.rename", "os.rmdir") and str(job.output) in str(arguments[0]):
                remaining[0] -= 1
                if not remaining[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(on_event)

    def die_writing(name: str) -> None:
        """Die when a file of this folder is half written, because the kernel ends a process that exceeds its file size limit."""

        def on_event(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.mkdir" and str(arguments[0]).endswith(f"{name}.partial"):
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        sys.addaudithook(on_event)

    def status_of(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def written() -> dict[str, torch.Tensor]:
        files = [f for name in ("checkpoint", "optimizer") for f in sorted((job.output / name).glob("*.safetensors"))]
        return {f"{f.parent.name}/{f.name}/{n}": t for f in files for n, t in load_file(f).items()}

    start_time = time.monotonic()
    assert status_of(child(lambda: None)) == 0
    seconds, expected = time.monotonic() - start_time, written()
    deaths = differing = halves = 0
    for point in [*range(1, 20, 2), 0.2, 0.6, "optimizer", "checkpoint"]:
        act = {int: die_at, float: lambda _: None, str: die_writing}[type(point)]
        pid = child(partial(act, point))
        if isinstance(point, float):
            time.sleep(point * seconds)
            os.kill(pid, signal.SIGKILL)
        status = status_of(pid)
        deaths += status == -signal.SIGKILL
        halves += status == -signal.SIGXFSZ
        if isinstance(point, int) and not status:
            continue  # the update has fewer accesses
        assert status_of(child(lambda: None)) == 0
        weights = written()
        differing += weights.keys() != expected.keys() or any(not torch.equal(weights[name], expected[name]) for name in expected)
    return {
        "deaths": deaths,
        "half_written": halves,
        "differing": differing,
        "tensors": len(expected),
        "left": len(list(job.output.glob("*.partial"))),
    }


def check_frozen(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, distributed: bool) -> dict[str, float]:
    """Freeze the lowest of four layers in one update; count frozen tensors that moved, and free tensors that did not."""
    config = json.loads((directory / "config.json").read_text()) | {"num_hidden_layers": 4}
    optimization = Optimization(JOB.learning_rate, bf16=bf16, frozen_layers=1, distributed=distributed)
    trained = TrainedModel(config, parallel, optimization)
    trained.make_optimizer()
    before = {name: tensor.clone() for name, tensor in full_weights(trained.megatron)}
    ppo.update(trained, samples(model, drift=0.0), FIRST, NO_POLICIES, LogitScale(0.0))
    moved = {name for name, tensor in full_weights(trained.megatron) if not torch.equal(tensor, before[name])}
    kept = {name for name in before if name == "model.embed_tokens.weight" or name.startswith("model.layers.0.")}
    return {
        "moved": len(moved & kept),
        "stayed": len(before.keys() - kept - moved),
        "frozen": len(kept),
        "saved_in_float32": sum(t.dtype == torch.float32 for _, t in full_weights(trained.megatron)) / len(before),
    }


def check_gathered(directory: Path, parallel: Parallel, distributed: bool) -> list[int]:
    """Return the number of tensors in each rank's memory after the weights are gathered for writing."""
    held: list[Any] = [None] * dist.get_world_size()
    model = trained_model(directory, parallel, distributed=distributed).megatron
    dist.all_gather_object(held, len(gather_on_rank_0(model, torch.float32)))
    return held


def check_shares(directory: Path, parallel: Parallel, distributed: bool) -> dict[str, Any]:
    """Return the number of elements in each rank's share and in all; count the tensors in no share or in several."""
    model = trained_model(directory, parallel, distributed=distributed).megatron
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, {name: tensor.numel() for name, tensor in rank_share(model).items()})
    sizes = {name: tensor.numel() for name, tensor in full_weights(model)}
    names = sorted(name for share in shares for name in share)
    return {
        "elements": [sum(share.values()) for share in shares],
        "whole": sum(sizes.values()),
        "largest": max(sizes.values()),
        "astray": len(set(sizes) ^ set(names)) + len(names) - len(set(names)),
    }
