"""What a trainer holds and leaves behind: gone on from, in other layouts too, killed at any moment, frozen, collected."""

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

from tasks.trainer.job import Job
from tasks.trainer.model.convert import Stored, collected, full_weights, share
from tasks.trainer.model.engine import WEIGHTS, Optimization, Parallel, TrainedModel, parallel_state, start
from tasks.trainer.update import optimizer_state, ppo
from tests.tasks.trainer.engines import JOB, LAYOUTS, engine_of, weights_of
from tests.tasks.trainer.models import samples

FIRST = JOB.model_copy(update={"minibatch": 4, "warmup_steps": 0, "epochs": 1})
SECOND = FIRST.model_copy(update={"seed": 1})
MOVES = {
    1: [("tensor", "one"), ("pipeline", "one")],
    2: [("one", "data"), ("tensor", "data"), ("data", "tensor"), ("data", "pipeline")],
}
"""From one layout to another, by the number of processes of the latter."""


def check_resumed(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path) -> dict[str, float]:
    """Two updates, and the same two with all written and read again in between, which is left in `state` for other layouts."""
    made = samples(model, drift=0.0)
    straight = engine_of(directory, parallel, bf16)
    before = torch.get_rng_state()
    ppo.update(straight, made, FIRST, {}, ppo.LogitScale(0.0))
    drew = not torch.equal(torch.get_rng_state(), before)
    straight.save(state / "model", torch.float32)
    optimizer_state.save(straight, state / "optimizer")
    dist.barrier()
    ppo.update(straight, made, SECOND, {}, ppo.LogitScale(0.0))
    straight.save(state / "wanted", torch.float32)
    dist.barrier()
    return {
        "drew": float(drew),
        "resumed": gone_on(model, parallel, bf16, state),
        "without": gone_on(model, parallel, bf16, state, with_moments=False),
    }


def gone_on(model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path, with_moments: bool = True) -> float:
    """How far the second update ends from where it did without a break."""
    engine = engine_of(state / "model", parallel, bf16)
    if with_moments:
        optimizer_state.load(engine, state / "optimizer")
    ppo.update(engine, samples(model, drift=0.0), SECOND, {}, ppo.LogitScale(0.0))
    return apart(load_file(state / "wanted" / WEIGHTS), weights_of(engine))


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of a weight."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


def check_moved(model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path) -> dict[str, Any]:
    """Going on from another layout's state; what changes when it is written again, and what is said where a file is lost."""
    answers: dict[str, Any] = {"apart": gone_on(model, parallel, bf16, state)}
    engine = engine_of(state / "model", parallel, bf16)
    optimizer_state.load(engine, state / "optimizer")
    again = state.with_name("again")
    optimizer_state.save(engine, again)
    dist.barrier()
    before, after = ({m: Stored(place.glob(f"{m}-*")) for m in optimizer_state.MOMENTS} for place in (state / "optimizer", again))
    changed = [
        n
        for m in optimizer_state.MOMENTS
        for n in before[m].keys() | after[m].keys()
        if not torch.equal(before[m][n], after[m][n])
    ]
    counts = [(place / optimizer_state.STEPS_NAME).read_text() for place in (state / "optimizer", again)]
    dist.barrier()
    if dist.get_rank() == 0:
        (again / "exp_avg_sq-00000.safetensors").unlink()
    dist.barrier()
    try:
        optimizer_state.load(engine, again)
        lost = ""
    except ValueError as refused:
        lost = str(refused)
    return answers | {"changed": len(changed) + (counts[0] != counts[1]), "lost": lost}


def moved(model: Qwen2ForCausalLM, states: Path) -> dict[str, list[dict[str, Any]]]:
    """Every move to this number of processes, in float32 and bfloat16."""
    answers = {}
    for source, target in MOVES[dist.get_world_size()]:
        parallel = LAYOUTS[dist.get_world_size()][target]
        parallel_state.destroy_model_parallel()
        start(parallel, 0)
        answers[f"{source} to {target}"] = [
            check_moved(model, parallel, bf16, states / source / str(bf16)) for bf16 in (False, True)
        ]
    return answers


def check_killed(job: Job) -> dict[str, object]:
    """An update killed (SIGKILL) at touches of its folder and at times between, and run again: other weights, and the deaths.

    Forks, and therefore comes before there is a process group.
    """

    def child(act: Callable[[], None]) -> int:
        if not (number := os.fork()):
            act()
            start(Parallel(), 0)
            ppo.run(job)
            os._exit(0)
        return number

    def die_at(event: int) -> None:
        """At this touch of the folder; the number of touches is told when none is left."""
        left = [event]

        def heard(name: str, arguments: tuple[object, ...]) -> None:
            if name in ("open", "os.mkdir", "os.rename", "os.rmdir") and str(job.output) in str(arguments[0]):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(heard)

    def die_writing(name: str) -> None:
        """When a file of this folder is half written: the kernel lets no file become larger, and ends who tries."""

        def heard(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.mkdir" and str(arguments[0]).endswith(f"{name}.partial"):
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        sys.addaudithook(heard)

    def ended(number: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])

    def written() -> dict[str, torch.Tensor]:
        files = [f for name in ("checkpoint", "optimizer") for f in sorted((job.output / name).glob("*.safetensors"))]
        return {f"{f.parent.name}/{f.name}/{n}": t for f in files for n, t in load_file(f).items()}

    began = time.monotonic()
    assert ended(child(lambda: None)) == 0
    seconds, wanted = time.monotonic() - began, written()
    deaths = differing = halves = 0
    for point in [*range(1, 40, 2), 0.2, 0.4, 0.6, "optimizer", "checkpoint"]:
        act = {int: die_at, float: lambda _: None, str: die_writing}[type(point)]
        number = child(partial(act, point))
        if isinstance(point, float):
            time.sleep(point * seconds)
            os.kill(number, signal.SIGKILL)
        status = ended(number)
        deaths += status == -signal.SIGKILL
        halves += status == -signal.SIGXFSZ
        if isinstance(point, int) and not status:
            continue  # fewer touches than that
        assert ended(child(lambda: None)) == 0
        found = written()
        differing += found.keys() != wanted.keys() or any(not torch.equal(found[name], wanted[name]) for name in wanted)
    return {
        "deaths": deaths,
        "half_written": halves,
        "differing": differing,
        "tensors": len(wanted),
        "left": len(list(job.output.glob("*.partial"))),
    }


def check_frozen(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool) -> dict[str, float]:
    """One update with the lowest of four layers left as it is: tensors that moved against that, or stayed although free."""
    described = json.loads((directory / "config.json").read_text()) | {"num_hidden_layers": 4}
    engine = TrainedModel(described, parallel, Optimization(JOB.learning_rate, bf16=bf16, frozen_layers=1))
    engine.make_optimizer()
    before = {name: tensor.clone() for name, tensor in full_weights(engine.model)}
    ppo.update(engine, samples(model, drift=0.0), JOB.model_copy(update={"minibatch": 6}), {}, ppo.LogitScale(0.0))
    moved = {name for name, tensor in full_weights(engine.model) if not torch.equal(tensor, before[name])}
    kept = {name for name in before if name == "model.embed_tokens.weight" or name.startswith("model.layers.0.")}
    return {
        "moved": len(moved & kept),
        "stayed": len(before.keys() - kept - moved),
        "frozen": len(kept),
        "saved_in_float32": sum(t.dtype == torch.float32 for _, t in full_weights(engine.model)) / len(before),
    }


def check_collected(directory: Path, parallel: Parallel) -> list[int]:
    """Tensors that each rank has in its memory once the weights are collected to be written."""
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, len(collected(engine_of(directory, parallel).model, torch.float32)))
    return held


def check_shared(directory: Path, parallel: Parallel) -> dict[str, Any]:
    """Elements that each rank is to write where ranks share, of how many; and tensors that no rank or several would write."""
    model = engine_of(directory, parallel).model
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, {name: tensor.numel() for name, tensor in share(model).items()})
    whole = {name: tensor.numel() for name, tensor in full_weights(model)}
    told = sorted(name for found in shares for name in found)
    return {
        "elements": [sum(found.values()) for found in shares],
        "whole": sum(whole.values()),
        "largest": max(whole.values()),
        "astray": len(set(whole) ^ set(told)) + len(told) - len(set(told)),
    }
