"""What runs inside trainer processes; the tests start it with torchrun and judge the numbers it writes.

The trainer's CPU shim is process-global, so the tests' own process never imports Megatron.
"""

import argparse
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from models import CURRENT, OLDER, OTHERS, held_near, logprobs, reference_loss, samples, tiny, without_biases
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from infra.records import Sample
from infra.settings.schema import Reward
from tasks.reward import advantages, group_advantages
from tasks.trainer import flops, moments, ppo, safety
from tasks.trainer.attention import SDPACoreAttention
from tasks.trainer.batches import context_positions, micro_batches, minibatches
from tasks.trainer.chosen import Chosen
from tasks.trainer.convert import collected, full_weights
from tasks.trainer.engine import LAST_NORM, WEIGHTS, Engine, Optimization, Parallel, parallel_state, start, stop
from tasks.trainer.job import Job
from tasks.trainer.pretrain import Schedule, train

JOB = Job(
    checkpoint=Path(),
    samples=Path(),
    output=Path(),
    current_version=CURRENT,
    learning_rate=1e-3,
    micro_batch_tokens=128,
    clip_low=0.2,
    clip_high=0.3,
    importance_bound=1.2,
    context_weight=0.1,
    context_tokens=5,
)
WITH_OPTIONS = {"dual_clip": 1.5, "kl_weight": 0.2, "entropy_weight": 0.05}
OBJECTIVES = {
    "plain": {},
    "all recomputed": {"recomputed": "all"},
    **{name: {name: value} for name, value in WITH_OPTIONS.items()},
    "all options": {"proximal": "step", **WITH_OPTIONS},
}
"""Settings of the objective that gradients are compared at."""


def engine_of(directory: Path, parallel: Parallel, bf16: bool = False, **config: object) -> Engine:
    """The trainer's engine over a saved model, with some of its configuration changed."""
    described = json.loads((directory / "config.json").read_text()) | config
    engine = Engine(described, parallel, Optimization(JOB.learning_rate, bf16=bf16))
    engine.make_optimizer()
    engine.load(directory)
    return engine


def largest_gap(engine: Engine, model: Qwen2ForCausalLM, made: list[Sample]) -> float:
    """Largest difference of a token's log-probability between the trainer and transformers."""
    return apart_from(model, made, ppo.starting_logprobs(engine, made, range(len(made)), 128))


def apart_from(model: Qwen2ForCausalLM, made: list[Sample], found: dict[int, list[float]]) -> float:
    """Largest difference of log-probabilities that were found from transformers'."""
    with torch.no_grad():
        return max((logprobs(model, s) - torch.tensor(found[i])).abs().max().item() for i, s in enumerate(made))


def check_logprobs(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, float]:
    """Agreement with transformers, and what mistakes would show: rotary base, lost biases, labels one place off, temperature."""
    made = samples(model, drift=0.0)
    engine = engine_of(directory, parallel)
    answers = {"exact": largest_gap(engine, model, made)}
    if dist.get_world_size() == 1:
        rope = {"rope_type": "default", "rope_theta": 100.0}
        answers["wrong_rope"] = largest_gap(engine_of(directory, parallel, rope_parameters=rope), model, made)
        answers["bf16"] = largest_gap(engine_of(directory, parallel, bf16=True), model, made)
        answers["dropped_bias"] = largest_gap(engine, without_biases(model), made)
        batches = micro_batches(made, range(len(made)), 128, {})
        shifted = [replace(batch, at=batch.at + len(batch.samples)) for batch in batches]
        answers["unshifted_labels"] = apart_from(model, made, ppo._computed_logprobs(engine, shifted, made))
        hot = [s.model_copy(update={"temperature": s.temperature * 1.5}) for s in made]
        answers["wrong_temperature"] = apart_from(model, made, ppo.starting_logprobs(engine, hot, range(len(made)), 128))
    return answers


def check_parity(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """Log-probabilities and the plain objective's gradient, which goes through the conversion to Hugging Face's layout."""
    exact = largest_gap(engine_of(directory, parallel), model, samples(model, drift=0.0))
    return {"logprobs": exact, "gradients": check_gradients(directory, model, parallel, JOB)}


def check_reference(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Log-probabilities under another policy, and how many tensors are other ones after it was asked."""
    other = tiny(seed=4)
    made = samples(other, drift=0.4)
    if dist.get_rank() == 0:
        other.save_pretrained(directory.with_name("reference"))
    dist.barrier()
    engine = engine_of(directory, parallel)
    before = weights_of(engine)
    job = JOB.model_copy(update={"kl_weight": 0.2, "checkpoint": directory, "reference": directory.with_name("reference")})
    own = ppo.starting_logprobs(engine, made, range(len(made)), 128)
    answers = {
        "apart": apart_from(other, made, ppo.reference_logprobs(engine, made, job)),
        "moved": sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(engine.model)),
        "without_weight": len(ppo.reference_logprobs(engine, made, JOB)),
    }
    start_of_update = ppo.reference_logprobs(engine, made, job.model_copy(update={"reference": None}))
    return answers | {"start": max(abs(a - b) for i in own for a, b in zip(own[i], start_of_update[i], strict=True))}


def check_step_metrics(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """One step over all samples: its metrics, and what they should be."""
    made = samples(model, drift=0.4)
    job = JOB.model_copy(update={"epochs": 1, "kl_weight": 0.2})
    engine = engine_of(directory, parallel)
    older = [i for i, s in enumerate(made) if s.policy_version == OLDER]
    proximal = ppo.starting_logprobs(engine, made, older, 128)
    done = ppo.update(engine, made, job, proximal, ppo.LogitScale(0.0), held_near(made), peak=1e9)
    with torch.no_grad():
        expected = reference_loss(model, made, job, [[] for _ in made])
    rows = [(len(s.prompt_token_ids) + len(s.token_ids), len(s.token_ids) + min(5, len(s.prompt_token_ids) - 2)) for s in made]
    wanted = {
        "clip_fraction": expected.clipped,
        "reference_kl": expected.reference_kl,
        "reward": sum(s.reward for s in made) / len(made),
        "efficiency": flops.of_step(engine.hf_config, rows, 0) / done.steps[0].seconds / 1e9,
    }
    return {"found": done.steps[0].model_dump(include=set(wanted)), "wanted": wanted}


def check_round_trip(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Tensors that differ, in any bit, after load and save; with bfloat16 compute too."""
    answers = {}
    for bf16 in (False, True):
        engine_of(directory, parallel, bf16).save(directory.with_name("again"), torch.float32)
        dist.barrier()
        before, after = load_file(directory / "model.safetensors"), load_file(directory.with_name("again") / "model.safetensors")
        same = sum(torch.equal(before[name], after[name]) for name in before)
        answers["bf16" if bf16 else "fp32"] = len(before) + len(after) - 2 * same
    engine_of(directory, parallel).save(directory.with_name("sharper"), torch.float32, logit_scale=2.0)
    dist.barrier()
    after = load_file(directory.with_name("sharper") / "model.safetensors")
    answers["scaled"] = sum(not torch.equal(after[name], before[name] * (2 if name == LAST_NORM else 1)) for name in before)
    return answers


def check_collected(directory: Path, parallel: Parallel) -> list[int]:
    """Tensors that each rank has in its memory once the weights are collected to be written."""
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, len(collected(engine_of(directory, parallel).model, torch.float32)))
    return held


def check_gradients(
    directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, job: Job, bf16: bool = False
) -> dict[str, float]:
    """The PPO gradient against autograd over transformers: largest relative error of a tensor, norms, clipped tokens."""
    made = samples(model, drift=0.4)
    prompted = [context_positions(sample, JOB.context_tokens) for sample in made]
    plain_scale = torch.zeros((), requires_grad=True)
    expected = reference_loss(model, made, job, prompted, plain_scale)
    model.zero_grad()
    expected.loss.backward()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}

    engine = engine_of(directory, parallel, bf16)
    # Before the first step, both kinds of proximal policy are the weights as they are.
    chosen = [i for i, s in enumerate(made) if s.policy_version == OLDER or job.recomputed == "all"]
    proximal = ppo.proximal_logprobs(engine, made, chosen, job)
    own = range(parallel_state.get_data_parallel_rank(), len(made), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(made, own, 128, proximal, JOB.context_tokens, held_near(made))
    scale = ppo.LogitScale(rate=1.0)
    totals = ppo.total(engine.accumulate(ppo.objective(job, scale), batches, (12, 64)))
    got = {name: tensor.cpu() for name, tensor in full_weights(engine.model, lambda parameter: parameter.main_grad)}
    error = max(((got[n] - wanted[n]).norm() / wanted[n].norm().clamp(min=1e-9)).item() for n in wanted)
    sums = totals.sums
    scale.step(sums.tokens)
    assert plain_scale.grad is not None
    return {
        "relative_error": error,
        "tensors": len(got),
        "missing": len(wanted.keys() ^ got.keys()),
        "loss": (sums.loss + job.context_weight * sums.context) / sums.tokens,
        "wanted_loss": expected.loss.item(),
        "clipped": sums.clipped / sums.tokens,
        "wanted_clipped": expected.clipped,
        "bounded": sums.bounded / sums.tokens,
        "wanted_bounded": expected.bounded,
        "micro_batches": len(batches),
        "logit_scale": math.log(scale.factor),
        "wanted_logit_scale": -plain_scale.grad.item(),
    }


def check_device(directory: Path, model: Qwen2ForCausalLM) -> dict[str, Any]:
    """Where the trainer computes, how its processes talk, and the gradient in bfloat16."""
    engine = engine_of(directory, Parallel())
    return {
        "device": next(engine.model.parameters()).device.type,
        "backend": dist.get_backend(),
        "gradients": check_gradients(directory, model, Parallel(), JOB, bf16=True),
    }


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


def check_refusals(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """What stops a step or an update, by its reason, and how many tensors moved although it was refused."""
    engine = engine_of(directory, parallel)
    before = {name: tensor.clone() for name, tensor in full_weights(engine.model)}
    exact, drifted = samples(model, drift=0.0), samples(model, drift=0.4)
    job = JOB.model_copy(update={"minibatch": 4})

    def told(made: list[Sample], **changes: float) -> str:
        try:
            ppo.update(engine, made, job.model_copy(update=changes), {}, ppo.LogitScale(0.5))
        except safety.Refused as error:
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
        except safety.Refused as error:
            answers[name] = str(error)
    own = range(parallel_state.get_data_parallel_rank(), len(exact), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(exact, own, 128, {})
    engine.accumulate(ppo.objective(job, ppo.LogitScale(0.0)), batches, (12, 64))
    answers["finite"] = engine.finite()
    if dist.get_rank() == dist.get_world_size() - 1:
        engine.model.buffers[0].grad_data[0] = math.inf
    try:
        engine.apply(1e-3)
    except FloatingPointError as error:
        answers["gradient"] = str(error)
    answers["moved"] = sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(engine.model))
    # Of three minibatches the one with the odd sample is refused, and the others are trained.
    odd = [s.model_copy(update={"advantage": math.nan}) if i == 5 else s for i, s in enumerate(exact)]
    found = ppo.update(engine, odd, job.model_copy(update={"epochs": 1}), {}, ppo.LogitScale(0.5))
    answers |= {"taken": len(found.steps), "notes": found.notes, "trained": len(found.trained), "odd_trained": 5 in found.trained}
    stopped = ppo.update(engine_of(directory, parallel), exact, job.model_copy(update={"max_kl": 1e-6}), {}, ppo.LogitScale(0.0))
    return answers | {"before_the_kl": len(stopped.steps), "stopped": stopped.notes, "first_step": stopped.steps[0].model_dump()}


def check_frozen(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool) -> dict[str, float]:
    """One update with the lowest of four layers left as it is: tensors that moved against that, or stayed although free."""
    described = json.loads((directory / "config.json").read_text()) | {"num_hidden_layers": 4}
    engine = Engine(described, parallel, Optimization(JOB.learning_rate, bf16=bf16, frozen_layers=1))
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


def check_chosen() -> dict[str, float]:
    """Largest difference of attention at chosen positions, and of its gradients, from those among all; one row has none."""
    positions = {0: (3, 7, 11), 1: (), 2: (0,)}
    times, rows, heads, groups, width = 12, 3, 4, 2, 8
    at = torch.tensor([time * rows + row for row, found in positions.items() for time in found])
    answers = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        core = SDPACoreAttention(SimpleNamespace(attention_dropout=0.0, context_parallel_size=1), 1)
        given = [torch.randn(times, rows, n, width, dtype=dtype).requires_grad_() for n in (heads, groups, groups)]
        among_all = core(*given).flatten(0, 1)[at][:, None]
        weights = torch.randn_like(among_all)
        expected = (among_all, *torch.autograd.grad((among_all * weights).sum(), given))
        core.chosen = Chosen.of(at, rows, torch.device("cpu"))
        alone = core(*given)
        got = (alone, *torch.autograd.grad((alone * weights).sum(), given))
        answers[str(dtype)] = max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True))
    return answers


def check_muon(directory: Path) -> dict[str, float]:
    """Pretraining with Muon: loss before and after, and whether the float32 masters are what is saved."""
    engine = pretrained(directory, Parallel())
    rows = np.tile(np.arange(8, 40, dtype=np.uint16), (8 * 60, 1))
    losses: list[float] = []
    schedule = Schedule(5e-3, tokens=rows.size)
    train(engine, rows, schedule, 8, 4, lambda tokens: torch.ones(tokens.shape), lambda _, loss, *__: losses.append(loss))
    engine.save(directory.with_name("muon"), torch.float32)
    saved = load_file(directory.with_name("muon") / "model.safetensors")
    masters = dict(full_weights(engine.model))
    model = dict(engine.model.named_parameters())
    return {
        "first": losses[0],
        "last": losses[-1],
        "not_masters": sum(not torch.equal(saved[name], masters[name]) for name in saved),
        "rounded_model": max((p.float() - p.main_param).abs().max().item() for p in model.values()),
        "float32": min((tensor != tensor.bfloat16().float()).float().mean().item() for tensor in saved.values()),
    }


def pretrained(directory: Path, parallel: Parallel) -> Engine:
    """An engine with Muon over a saved model."""
    described = json.loads((directory / "config.json").read_text())
    engine = Engine(described, parallel, Optimization(5e-3, optimizer="muon", bf16=True))
    engine.make_optimizer()
    engine.load(directory)
    return engine


def refusals(directory: Path, parallel: Parallel) -> list[str]:
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
        Engine(json.loads((directory / "config.json").read_text()), parallel, Optimization(1e-3, frozen_layers=1))
    except ValueError as error:
        return str(error)
    return ""


def weights_of(engine: Engine) -> dict[str, torch.Tensor]:
    """All weights, the masters where there are any."""
    return {name: tensor.clone() for name, tensor in full_weights(engine.model)}


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of a weight."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


FIRST = JOB.model_copy(update={"minibatch": 4, "warmup_steps": 0, "epochs": 1})
SECOND = FIRST.model_copy(update={"seed": 1})


def check_resumed(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path) -> dict[str, float]:
    """Two updates, and the same two with all written and read again in between, which is left in `state` for other layouts."""
    made = samples(model, drift=0.0)
    straight = engine_of(directory, parallel, bf16)
    before = torch.get_rng_state()
    ppo.update(straight, made, FIRST, {}, ppo.LogitScale(0.0))
    drew = not torch.equal(torch.get_rng_state(), before)
    straight.save(state / "model", torch.float32)
    moments.save(straight, state / "optimizer")
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
        moments.load(engine, state / "optimizer")
    ppo.update(engine, samples(model, drift=0.0), SECOND, {}, ppo.LogitScale(0.0))
    return apart(load_file(state / "wanted" / WEIGHTS), weights_of(engine))


def check_moved(model: Qwen2ForCausalLM, parallel: Parallel, bf16: bool, state: Path) -> dict[str, float]:
    """Going on from another layout's state, and what of it changes when it is written again."""
    answers = {"apart": gone_on(model, parallel, bf16, state)}
    engine = engine_of(state / "model", parallel, bf16)
    moments.load(engine, state / "optimizer")
    again = state.with_name("again")
    moments.save(engine, again)
    dist.barrier()
    pairs = [(state / "optimizer" / name, again / name) for name in ("exp_avg.safetensors", "exp_avg_sq.safetensors")]
    changed = [name for a, b in pairs for name, tensor in load_file(a).items() if not torch.equal(tensor, load_file(b)[name])]
    counts = [(place / moments.STEPS_NAME).read_text() for place in (state / "optimizer", again)]
    dist.barrier()
    return answers | {"changed": len(changed) + (counts[0] != counts[1])}


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
        folders = (job.output / "checkpoint", job.output / "optimizer")
        return {
            f"{f.name}/{p.name}/{n}": t for f in folders for p in sorted(f.glob("*.safetensors")) for n, t in load_file(p).items()
        }

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


def write_job(work: Path, model: Qwen2ForCausalLM) -> Job:
    """A job over samples of the model's own, written as job.json for the command line; its output goes beside it.

    Its checkpoint lies in several files, as large ones do.
    """
    model.save_pretrained(work / "sharded", max_shard_size="100KB")
    made = samples(model, drift=0.0)
    pq.write_table(pa.Table.from_pylist([s.model_dump() for s in made]), work / "samples.parquet")
    job = JOB.model_copy(
        update={
            "checkpoint": work / "sharded",
            "samples": work / "samples.parquet",
            "output": work / "command",
            "minibatch": 4,
            "threads": 1,
        }
    )
    (work / "job.json").write_text(job.model_dump_json())
    return job.model_copy(update={"output": work / "direct"})


def check_rejections(directory: Path, model: Qwen2ForCausalLM) -> list[float]:
    """An update from rejections alone, without a baseline: how much likelier each sample's tokens are afterwards, in nats."""
    made = samples(model, drift=0.0)
    settings = Reward(baseline="none")
    worth = advantages([settings.rejected] * len(made), [len(s.token_ids) for s in made], settings)
    rejected = [
        s.model_copy(update={"outcome": "rejected", "reward": settings.rejected, "advantage": a})
        for s, a in zip(made, worth, strict=True)
    ]
    safety.check_classes(rejected)
    engine = engine_of(directory, Parallel())
    job = JOB.model_copy(update={"context_weight": 0.0, "warmup_steps": 0, "epochs": 4})
    before = ppo.starting_logprobs(engine, rejected, range(len(rejected)), 128)
    ppo.update(engine, rejected, job, {}, ppo.LogitScale(0.0))
    after = ppo.starting_logprobs(engine, rejected, range(len(rejected)), 128)
    return [sum(after[i]) - sum(before[i]) for i in before]


def check_bandit(directory: Path, parallel: Parallel, group: int = 1) -> dict[str, float]:
    """Reward 1 for repeating the prompt's last token, 0 otherwise: mean reward of the first and last rounds, and CPU-seconds.

    `group`: completions of each prompt, whose advantages are then the group's.
    """
    began = time.process_time()
    config = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    described = json.loads((directory / "config.json").read_text()) | config
    engine = Engine(described, parallel, Optimization(JOB.learning_rate))
    engine.make_optimizer()
    changes = {"learning_rate": 5e-3, "micro_batch_tokens": 4096, "minibatch": 64, "warmup_steps": 0, "context_weight": 0.0}
    job = JOB.model_copy(update=changes)
    generator, rewards = torch.Generator().manual_seed(0), []
    for number in range(60):
        drawn = torch.randint(16, (128 // group, 4), generator=generator).tolist()
        prompts = [prompt for prompt in drawn for _ in range(group)]
        asked = [_bandit_sample(prompt, 0, 0.0, 0.0) for prompt in prompts]
        distribution = _next_token_logprobs(engine, asked)
        chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
        told = distribution.gather(1, chosen)[:, 0].tolist()
        reward = [float(token == prompt[-1]) for token, prompt in zip(chosen[:, 0].tolist(), prompts, strict=True)]
        rewards.append(math.fsum(reward) / len(reward))
        alone = [value - rewards[-1] for value in reward]
        worth = group_advantages(reward, [number // group for number in range(128)]) if group > 1 else alone
        made = [
            _bandit_sample(prompt, token, score, value)
            for prompt, token, score, value in zip(prompts, chosen[:, 0].tolist(), told, worth, strict=True)
        ]
        with suppress(safety.Refused):  # every answer is right, nothing is left to learn
            ppo.update(engine, made, job.model_copy(update={"seed": number}), {}, ppo.LogitScale(0.0))
    return {"first": sum(rewards[:3]) / 3, "last": sum(rewards[-3:]) / 3, "seconds": time.process_time() - began}


def _bandit_sample(prompt: list[int], token: int, score: float, advantage: float) -> Sample:
    return Sample(
        completion_id="c",
        user="u",
        policy_version=CURRENT,
        prompt_token_ids=tuple(prompt),
        token_ids=(token,),
        logprobs=(score,),
        temperature=1.0,
        outcome="accepted",
        shown_characters=1,
        accepted_characters=1,
        advantage=advantage,
    )


def _next_token_logprobs(engine: Engine, asked: list[Sample]) -> torch.Tensor:
    (batch,) = micro_batches(asked, range(len(asked)), 10_000, {})

    def forward_step(queue: Iterator[object], model: object) -> object:
        return ppo.forward(model, next(queue)), lambda logits, non_loss_data=True: logits[0].float().log_softmax(-1)

    with torch.no_grad():
        (answer,) = engine.run(forward_step, [batch], tuple(batch.tokens.shape), forward_only=True)
    return answer


LAYOUTS = {
    1: {"one": Parallel()},
    2: {"data": Parallel(), "tensor": Parallel(tensor=2), "pipeline": Parallel(pipeline=2)},
    4: {"tensor and data": Parallel(tensor=2)},
}
MOVES = {
    1: [("tensor", "one"), ("pipeline", "one")],
    2: [("one", "data"), ("tensor", "data"), ("data", "tensor"), ("data", "pipeline")],
}
"""From one layout to another, by the number of processes of the latter."""


def moved(model: Qwen2ForCausalLM, states: Path) -> dict[str, list[dict[str, float]]]:
    """Every move to this number of processes, in float32 and bfloat16."""
    answers = {}
    for source, target in MOVES[dist.get_world_size()]:
        parallel = LAYOUTS[dist.get_world_size()][target]
        parallel_state.destroy_model_parallel()
        start(parallel, 0)
        answers[f"{source} to {target}"] = [
            check_moved(model, parallel, bf16, states / f"{source}-{bf16}") for bf16 in (False, True)
        ]
    return answers


def main() -> None:
    """Run every check that fits the number of processes, in every layout of them, and write the numbers to answers.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True, help="what layouts leave to others")
    parser.add_argument("--moves", action="store_true", help="only go on from what other layouts left")
    parser.add_argument("--device", action="store_true", help="only what depends on the device, and one update in bfloat16")
    options = parser.parse_args()
    directory = options.work / "model"
    # Not from_pretrained: under the trainer's CPU shim transformers 5.19 loads a model whose rotary embedding does nothing.
    model = tiny()
    answers: dict[str, Any]
    if options.moves:
        start(Parallel(), 0)
        (options.work / "answers.json").write_text(json.dumps({"moved": moved(model, options.states)}))
        stop()
        return
    if options.device:
        model.save_pretrained(directory)
        start(Parallel(), 0)
        answers = {"logprobs": check_logprobs(directory, model, Parallel()), **check_device(directory, model)}
        (options.work / "answers.json").write_text(json.dumps(answers))
        ppo.run(write_job(options.work, model).model_copy(update={"precision": "bfloat16"}))
        stop()
        return
    killed: dict[str, object] = {}
    if os.environ["WORLD_SIZE"] == "1":
        model.save_pretrained(directory)
        job = write_job(options.work, model).model_copy(update={"output": options.work / "killed", "keep_optimizer": True})
        job.output.mkdir()
        killed = check_killed(job)
    start(Parallel(), 0)
    others = {name: tiny(**changes) for name, changes in OTHERS.items()} if dist.get_world_size() < 4 else {}
    if dist.get_rank() == 0:
        model.save_pretrained(directory)
        for name, other in others.items():
            other.save_pretrained(options.work / name)
    dist.barrier()
    answers = {"killed": killed} if killed else {}
    for name, parallel in LAYOUTS[dist.get_world_size()].items():
        parallel_state.destroy_model_parallel()
        start(parallel, 0)
        if dist.get_world_size() == 4:
            answers[name] = check_parity(directory, model, parallel)
            continue
        answers[name] = {
            "logprobs": check_logprobs(directory, model, parallel),
            "round_trip": check_round_trip(directory, parallel),
            "collected": check_collected(directory, parallel),
            "gradients": {
                objective: check_gradients(directory, model, parallel, JOB.model_copy(update=changes))
                for objective, changes in OBJECTIVES.items()
            },
            "refusals": check_refusals(directory, model, parallel),
            "resumed": [
                check_resumed(directory, model, parallel, bf16, options.states / f"{name}-{bf16}") for bf16 in (False, True)
            ],
            "frozen": [check_frozen(directory, model, parallel, bf16) for bf16 in (False, True)],
            "reference": check_reference(directory, parallel),
            "step_metrics": check_step_metrics(directory, model, parallel),
        }
        answers[name]["others"] = {
            other: check_parity(options.work / other, made, parallel)
            for other, made in others.items()
            if name != "data" and made.config.num_hidden_layers % parallel.pipeline == 0
        }
        if name == "pipeline":
            answers[name]["nothing_left"] = nothing_left(directory, parallel)
        if name in ("tensor", "pipeline"):
            answers[name]["pretraining"] = refusals(directory, parallel)
    if dist.get_world_size() == 1:
        answers["muon"] = check_muon(directory)
        answers["chosen"] = check_chosen()
        answers["with_transformer_engine"] = with_transformer_engine(directory)
        answers["bandit"] = check_bandit(directory, parallel)
        answers["grouped_bandit"] = check_bandit(directory, parallel, group=8)
        answers["rejections"] = check_rejections(directory, model)
        job = write_job(options.work, model)
        ppo.run(job)
        ended = ppo.run(job.model_copy(update={"output": options.work / "ended", "max_kl": 1e-6}))
        answers["ended"] = ended.model_dump(include={"samples", "skipped", "tokens", "mean_reward"}) | {
            "order": list(next(minibatches(12, 4, 1, job.seed)))
        }
    elif dist.get_world_size() == 2:
        answers["moved"] = moved(model, options.states)
    if dist.get_rank() == 0:
        (options.work / "answers.json").write_text(json.dumps(answers, indent=1))
    stop()


if __name__ == "__main__":
    main()
