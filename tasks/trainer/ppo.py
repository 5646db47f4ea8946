"""One critic-free PPO update over served completions.

torchrun --standalone --nproc_per_node 1 -m tasks.trainer.ppo --job job.json

Beside the surrogate stands a language-model loss on the developers' own code, which every prompt is full of (PPO-ptx: Ouyang et
al. 2022, "Training language models to follow instructions with human feedback", eq. 2): it teaches the names and the manner of a
team's code, and holds the model to writing code while the reward pulls at it.

The clip holds the policy near the proximal one. For samples of the current version that is the behaviour policy itself, whose
log-probabilities the server recorded (agreement is measured before the first step); for older samples, or for all (`recomputed`),
it is the weights at the start of the update, or of each step (`proximal`), and a truncated importance weight corrects for the
rest: for the versions between, and for what trainer and server differ by.

What would harm the weights is refused (safety.py): a step, which is then noted and left out, or the whole update.
"""

import argparse
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

# First of all: it prepares Megatron for machines without CUDA before anything imports it.
from tasks.trainer.engine import Engine, Optimization, Parallel, start, stop

# isort: split
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

from infra.records import Sample
from tasks.trainer import flops, moments, products, reports, safety
from tasks.trainer.batches import AT_STEP, MicroBatch, Proximal, micro_batches, minibatches, read
from tasks.trainer.chosen import at_positions
from tasks.trainer.job import CHECKPOINT_NAME, METRICS_NAME, OPTIMIZER_NAME, REFUSED_NAME, Job, Metrics, StepMetrics
from tasks.trainer.losses import Scores, clipped_surrogate, importance_weights, k3_divergence
from tasks.trainer.packed import Packed

log = logging.getLogger("trainer")


class LogitScale:
    """The sharpness of the policy as a parameter of its own: logits are multiplied by e^s, s = 0 at the start.

    Adam moves every weight about equally far, so that a few steps hardly change how sure the model is, although the labels tell
    this one number from chance (README.md). It takes plain gradient steps, and ends in the weights of the last norm.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.log = torch.zeros((), device="cuda" if torch.cuda.is_available() else "cpu", requires_grad=rate > 0)

    def step(self, tokens: float) -> None:
        """One step along the gradient of the summed loss over `tokens`, collected on all ranks since the last one."""
        gradient = torch.zeros_like(self.log) if self.log.grad is None else self.log.grad
        dist.all_reduce(gradient)  # each data-parallel rank has its samples' part, each tensor-parallel rank its logits' part
        with torch.no_grad():
            self.log -= self._rate * gradient / tokens
        self.drop()

    def drop(self) -> None:
        """Forget the gradient that was collected."""
        self.log.grad = None

    @property
    def factor(self) -> float:
        """e^s."""
        return float(self.log.detach().exp())


def scores(logits: torch.Tensor, batch: MicroBatch, sharpness: torch.Tensor | float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each sampled token under its sampling distribution, and that one's entropy, [K]; logits [1, K, V / TP].

    Args:
        sharpness: what the logits are multiplied by.
    """
    scaled = logits[0].float() / (batch.temperature.to(logits.device) / sharpness)[:, None]
    group = parallel_state.get_tensor_model_parallel_group()
    return Scores.apply(scaled, batch.targets.to(logits.device), group if dist.get_world_size(group) > 1 else None)


def context_loss(logits: torch.Tensor, targets: torch.Tensor, sharpness: float) -> torch.Tensor:
    """Negative log-probability of prompt tokens [C] at temperature 1, summed; logits [1, C, V / TP], as in `scores`."""
    # The function works in place on its float32 argument, which is a tensor of our own here.
    return vocab_parallel_cross_entropy((logits[0].float() * sharpness)[:, None], targets.to(logits.device)[:, None]).sum()


def forward(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Logits at the positions that predict sampled tokens, then prompt tokens, [1, K + C, V / TP], on the last pipeline stage."""
    device = next(model.parameters()).device
    packed, at = Packed(batch.lengths, device), torch.cat([batch.at, batch.context_at]).to(device)
    with at_positions(model, at, packed):
        return model(batch.tokens.to(device)[None], packed.time[None], attention_mask=None, packed_seq_params=packed)


def at_step(samples: Sequence[Sample], chosen: Sequence[int]) -> Proximal:
    """Proximal log-probabilities that each step finds by itself: the chosen samples' own as it begins.

    Their ratio is then 1 and their gradient that of the policy, times the truncated importance weight of all that lies between
    the behaviour policy and the step (Espeholt et al. 2018, "IMPALA", the policy gradient of section 4.2).
    """
    return {i: [AT_STEP] * len(samples[i].token_ids) for i in chosen}


def starting_logprobs(engine: Engine, samples: Sequence[Sample], chosen: Sequence[int], budget: int) -> dict[int, list[float]]:
    """Log-probabilities of the chosen samples' tokens under the weights as they are, by sample, on every rank.

    Each data-parallel rank computes its share.
    """
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    own = _computed_logprobs(engine, micro_batches(samples, chosen[rank::ranks], budget, {}), samples)
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, own, group=parallel_state.get_data_parallel_group())
    return {i: values for part in parts for i, values in part.items()}


def _computed_logprobs(engine: Engine, batches: Sequence[MicroBatch], samples: Sequence[Sample]) -> dict[int, list[float]]:
    """Those of one data-parallel rank, on all of its pipeline stages."""
    if not batches:
        return {}

    def forward_step(queue: Iterator[MicroBatch], model: Any) -> Any:
        batch = next(queue)
        return forward(model, batch), lambda logits, non_loss_data=True: scores(logits, batch)[0]

    with torch.no_grad():
        answers = engine.run(forward_step, batches, _shape(batches), forward_only=True)
    found: dict[int, list[float]] = {}
    for batch, answer in zip(batches, answers, strict=False):
        lengths = [len(samples[i].token_ids) for i in batch.samples]
        found |= dict(zip(batch.samples, (part.tolist() for part in answer.cpu().split(lengths)), strict=True))
    # Pipeline stages before the last have no answers of their own.
    shared: list[Any] = [found]
    group = parallel_state.get_pipeline_model_parallel_group()
    dist.broadcast_object_list(shared, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return shared[0]


def objective(job: Job, scale: LogitScale) -> Callable[..., Any]:
    """The forward step of the objective, reporting a reports.Report."""

    def forward_step(queue: Iterator[MicroBatch], model: Any) -> Any:
        batch = next(queue)

        def loss(logits: torch.Tensor) -> Any:
            sampled = batch.targets.numel()
            policy, entropies = scores(logits[:, :sampled], batch, scale.log.exp())
            context = context_loss(logits[:, sampled:], batch.context_targets, scale.factor)
            near, behaviour, advantage = (t.to(policy.device) for t in (batch.proximal, batch.behaviour, batch.advantage))
            own = near.isnan()
            anchor = torch.where(own, behaviour, near)
            near = torch.where(own, policy.detach(), near)
            weights = importance_weights(near, behaviour, job.importance_bound)
            mask = torch.ones_like(policy)
            found = clipped_surrogate(policy, near, weights, advantage, mask, job.clip_low, job.clip_high, job.dual_clip)
            objective, divergence = found.loss, mask.new_zeros(())
            if job.kl_weight:
                divergence = k3_divergence(policy, batch.reference.to(policy.device)).sum()
                objective = objective + job.kl_weight * divergence
            entropy = entropies.sum()
            if job.entropy_weight:
                objective = objective - job.entropy_weight * entropy
            with torch.no_grad():
                away, moved = policy - behaviour, policy - anchor
                weight = away.clamp(max=40).exp()  # its square is a float32 still
                sums = reports.Sums(
                    loss=objective,
                    clipped=found.clipped,
                    kl=k3_divergence(torch.zeros_like(moved), moved.clamp(max=40)).sum(),
                    bounded=(weights >= job.importance_bound).float().sum(),
                    context=context,
                    prompted=mask.new_tensor(batch.context_targets.numel()),
                    tokens=mask.sum(),
                    entropy=entropy,
                    reference_kl=divergence,
                    weight=weight.sum(),
                    weight_squared=weight.square().sum(),
                    gap=away.abs().sum(),
                )
                report = reports.Report(torch.stack([part.detach() for part in sums]), moved)
            return objective + job.context_weight * context, mask.sum().int(), report

        return forward(model, batch), loss

    return forward_step


def total(found: Sequence[reports.Report]) -> reports.Totals:
    """A step's reports over all micro-batches and ranks."""
    return reports.total(
        found,
        parallel_state.get_data_parallel_group(),
        parallel_state.get_pipeline_model_parallel_group(),
        parallel_state.get_pipeline_model_parallel_last_rank(),
    )


class Updated(NamedTuple):
    """What an update did."""

    steps: list[StepMetrics]
    """Those that were taken."""
    bounded: float
    """Their tokens whose importance weight met the bound."""
    notes: list[str]
    """What was not done, and why."""
    trained: frozenset[int]
    """Samples of the steps that were taken, by their index."""


def update(
    engine: Engine,
    samples: Sequence[Sample],
    job: Job,
    proximal: Proximal,
    scale: LogitScale,
    reference: Proximal = MappingProxyType({}),
    peak: float = 0.0,
) -> Updated:
    """Take the job's optimizer steps.

    Args:
        proximal: log-probabilities under the policy that the clip holds near, where they are not the recorded ones.
        reference: log-probabilities under the policy that the KL is taken to, where it has a weight.
        peak: operations a second of all ranks' processors, for the metrics.

    Raises:
        Refused: no step could be taken.
    """
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    smallest = min(map(len, minibatches(len(samples), job.minibatch, 1, job.seed)))
    if smallest < ranks:
        raise ValueError(
            f"minibatch = {job.minibatch}: {len(samples)} samples make a minibatch of {smallest}, expected one for each of "
            f"{ranks} data-parallel ranks; raise minibatch or train with fewer processes"
        )
    done = Updated([], 0.0, [], frozenset())
    context = job.context_tokens if job.context_weight else 0

    def refuse(number: int, reason: str) -> None:
        done.notes.append(f"step {number + 1} refused: {reason}")
        log.info(done.notes[-1])

    for number, chosen in enumerate(minibatches(len(samples), job.minibatch, job.epochs, job.seed)):
        if reason := safety.empty_refusal([samples[i] for i in chosen]):
            refuse(number, reason)
            continue
        began, worked = time.perf_counter(), time.process_time()
        batches = micro_batches(samples, chosen[rank::ranks], job.micro_batch_tokens, proximal, context, reference)
        rate = job.learning_rate * min(1.0, (number + 1) / max(1, job.warmup_steps))
        totals = total(engine.accumulate(objective(job, scale), batches, _shape(batches)))
        sums = totals.sums
        if reason := safety.step_refusal(totals, engine.finite(), job.max_ratio):
            scale.drop()
            refuse(number, reason)
            continue
        if job.max_kl and sums.kl / sums.tokens > job.max_kl:
            left = f"KL {sums.kl / sums.tokens:.4g} a token is above max_kl = {job.max_kl}, what is left is left out"
            done.notes.append(f"step {number + 1} and on: {left}")
            log.info(done.notes[-1])
            break
        norm = engine.apply(rate)
        scale.step(sums.tokens)
        metrics = reports.metrics(
            totals,
            [samples[i] for i in chosen],
            gradient_norm=norm,
            logit_scale=scale.factor,
            learning_rate=rate,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - worked,
            operations=flops.of_step(engine.hf_config, _sizes(samples, chosen, context), job.frozen_layers),
            peak=peak,
        )
        log.info("step %d: %s", number + 1, metrics.model_dump_json())
        done = Updated([*done.steps, metrics], done.bounded + sums.bounded, done.notes, done.trained.union(chosen))
    if not done.steps:
        raise safety.Refused(f"no step was taken; {'; '.join(done.notes[:3])}")
    return done


def _sizes(samples: Sequence[Sample], chosen: Sequence[int], context: int) -> Iterator[tuple[int, int]]:
    """Of each chosen sample its tokens, and the positions at which logits are computed."""
    for i in chosen:
        prompt, sampled = len(samples[i].prompt_token_ids), len(samples[i].token_ids)
        yield prompt + sampled, sampled + max(0, min(context, prompt - 2))


def _shape(batches: Sequence[MicroBatch]) -> tuple[int, int]:
    return 1, max(b.tokens.numel() for b in batches)


def differences(samples: Sequence[Sample], starting: dict[int, list[float]]) -> list[float]:
    """Absolute differences of the trainer's and the server's log-probabilities, token by token."""
    return [abs(a - b) for i, values in starting.items() for a, b in zip(values, samples[i].logprobs, strict=True)]


def proximal_logprobs(engine: Engine, samples: Sequence[Sample], chosen: Sequence[int], job: Job) -> Proximal:
    """Log-probabilities of the chosen samples under the weights as they are, or the word that each step finds them by itself."""
    if job.proximal == "step":
        return at_step(samples, chosen)
    return starting_logprobs(engine, samples, chosen, job.micro_batch_tokens)


AGREEMENT_SAMPLES = 64
"""Most samples of the current version, spread over the update, on which log-probability agreement is measured."""


def reference_logprobs(engine: Engine, samples: Sequence[Sample], job: Job) -> Proximal:
    """Log-probabilities under the policy that the KL is taken to; none where it has no weight. The weights end as they were."""
    if not job.kl_weight:
        return {}
    if job.reference:
        engine.load(job.reference)
    found = starting_logprobs(engine, samples, range(len(samples)), job.micro_batch_tokens)
    if job.reference:
        engine.load(job.checkpoint)
    return found


def run(job: Job) -> Metrics:
    """Train as the job says and write its checkpoint; every rank calls it, rank 0 gets the metrics written."""
    clock = [("load", time.monotonic())]
    config = json.loads((job.checkpoint / "config.json").read_text())
    samples = read(job.samples, config["vocab_size"], config["max_position_embeddings"])
    safety.check_classes(samples)
    bf16 = products.faster_in_bf16(products.processor()) if job.precision == "fastest" else job.precision == "bfloat16"
    engine = Engine(
        config,
        Parallel(job.tensor_parallel, job.pipeline_parallel),
        Optimization(job.learning_rate, max_grad_norm=job.max_grad_norm, bf16=bf16, frozen_layers=job.frozen_layers),
    )
    engine.make_optimizer()
    engine.load(job.checkpoint)
    if job.optimizer:
        moments.load(engine, job.optimizer)

    clock.append(("starting log-probabilities", time.monotonic()))
    current = [i for i, s in enumerate(samples) if s.policy_version == job.current_version]
    older = [i for i, s in enumerate(samples) if s.policy_version != job.current_version]
    compared = current[:: math.ceil(len(current) / AGREEMENT_SAMPLES) or 1]
    gaps = differences(samples, starting_logprobs(engine, samples, compared, job.micro_batch_tokens))
    agreement = safety.agreement(gaps)
    safety.check_agreement(agreement, job.max_logprob_gap, job.max_logprob_gap_p99)
    proximal = proximal_logprobs(engine, samples, older if job.recomputed == "older" else range(len(samples)), job)
    reference = reference_logprobs(engine, samples, job)

    clock.append(("update", time.monotonic()))
    scale = LogitScale(job.logit_scale_rate)
    peak = dist.get_world_size() * flops.peak(engine.config.params_dtype)
    done = update(engine, samples, job, proximal, scale, reference, peak)

    clock.append(("save", time.monotonic()))
    if job.keep_optimizer:
        moments.save(engine, job.output / OPTIMIZER_NAME)
    engine.save(job.output / CHECKPOINT_NAME, torch.float32, extras=job.checkpoint, logit_scale=scale.factor)
    clock.append(("end", time.monotonic()))

    trained = [samples[i] for i in sorted(done.trained)]
    tokens = sum(len(s.token_ids) for s in trained)
    metrics = Metrics(
        samples=len(trained),
        skipped=len(samples) - len(trained),
        tokens=tokens,
        mean_reward=sum(s.reward for s in trained) / len(trained),
        entropy=-sum(sum(s.logprobs) for s in trained) / tokens,
        importance_clipped=done.bounded / sum(step.tokens for step in done.steps),
        logprob_difference_mean=agreement.mean if agreement else None,
        logprob_difference_p99=agreement.p99 if agreement else None,
        logprob_difference_max=agreement.largest if agreement else None,
        steps=tuple(done.steps),
        notes=tuple(done.notes),
        seconds={name: end - begin for (name, begin), (_, end) in pairwise(clock)},
    )
    if dist.get_rank() == 0:
        # The metrics say that the update is done: they come last, and whole.
        partial = job.output / f"{METRICS_NAME}.partial"
        partial.write_text(metrics.model_dump_json(indent=2))
        partial.rename(job.output / METRICS_NAME)
    return metrics


def main() -> None:
    """Run the job file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json (tasks/trainer/job.py)")
    job = Job.model_validate_json(parser.parse_args().job.read_text())
    warnings.filterwarnings("ignore", module="megatron")
    if job.threads:
        torch.set_num_threads(job.threads)
    start(Parallel(job.tensor_parallel, job.pipeline_parallel), job.seed)
    # Every rank has the same metrics: one tells them.
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(message)s")
    job.output.mkdir(parents=True, exist_ok=True)
    try:
        run(job)
    except safety.Refused as refused:
        # Every rank finds the same reason, and torchrun ends the others as soon as one has left: the first to leave writes it.
        partial = job.output / f"{REFUSED_NAME}.{dist.get_rank()}.partial"
        partial.write_text(str(refused))
        partial.rename(job.output / REFUSED_NAME)
        sys.exit(f"trainer: the update is refused, the weights stay: {refused}")
    stop()


if __name__ == "__main__":
    main()
