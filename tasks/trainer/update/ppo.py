"""One critic-free PPO update over actions at places (tasks/rewards/actions.py).

The clip holds the policy near the proximal policy. For samples of the current version that is the behaviour policy, whose
log-probabilities the server recorded; for older samples, or for all (`recomputed`), it is the weights at the start of the
update, or of each step (`proximal`), and a truncated importance weight corrects for the difference from the behaviour policy.

safety.py may refuse a step, which is then noted and left out, or the whole update. infra/docs/how/training.md explains the
options.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

# First: it prepares this process for Megatron before anything imports it.
from tasks.trainer.model.trained_model import Optimization, TrainedModel

# isort: split
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from infra.model.architectures import parse
from infra.records import Sample
from tasks.trainer.job import ADAPTER_NAME, CHECKPOINT_NAME, METRICS_NAME, OPTIMIZER_NAME, Job, Metrics, StepMetrics
from tasks.trainer.memory.estimate import Layout, MicroBatchSize
from tasks.trainer.memory.fit import check_fits
from tasks.trainer.model import flops
from tasks.trainer.model.process_group import Parallel, node_and_place, process_memory
from tasks.trainer.update import optimizer_state, passes, precision, reports, safety, stored
from tasks.trainer.update.batches import (
    FixedPolicies,
    MicroBatch,
    is_drawn,
    micro_batches,
    minibatches,
    places_of,
    rows_of,
    shares_of,
    size_of,
)
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.logprobs import (
    current_logprobs,
    fixed_policies,
    load_parent,
    logits_of,
    outputs_of,
    shape_of,
)
from tasks.trainer.update.losses import objective
from tasks.trainer.update.probing import probed
from tasks.trainer.update.targets import taught_by, trained_part, uses_written_text, without

AGREEMENT_SAMPLES = 64
"""Most samples of the current version, spread over the update, on which trainer and server are compared."""

log = logging.getLogger("trainer")


def objective_step(job: Job, scale: LogitScale) -> Callable[..., Any]:
    """Return Megatron's forward step for the job's objective; its loss function returns a reports.Report."""

    def forward_step(queue: Iterator[MicroBatch], megatron: Any) -> Any:
        batch = next(queue)

        def loss(logits: torch.Tensor) -> Any:
            total, report = objective(outputs_of(logits, batch, scale), batch, job)
            tokens = batch.targets.numel() + batch.settled_targets.numel() + batch.left_out
            return total, torch.tensor(tokens, dtype=torch.int32, device=total.device), report

        return logits_of(megatron, batch), loss

    return forward_step


def total(step_reports: Sequence[reports.Report]) -> reports.Totals:
    """Return a step's reports summed over all micro-batches and ranks."""
    return reports.total(
        step_reports,
        parallel_state.get_data_parallel_group(),
        parallel_state.get_pipeline_model_parallel_group(),
        parallel_state.get_pipeline_model_parallel_last_rank(),
    )


@dataclass
class UpdateResult:
    """The steps of an update."""

    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps that were taken."""
    bounded: float = 0.0
    """Tokens of these steps whose importance weight met its bound."""
    notes: list[str] = field(default_factory=list)
    """Refused steps, steps without their rewarded actions, and an early end of these, each with its reason."""
    trained: set[int] = field(default_factory=set)
    """Indices of the samples of the steps that were taken."""
    acted: set[int] = field(default_factory=set)
    """Those whose sampled tokens taught in one of these steps."""

    def note(self, text: str) -> None:
        """Keep and log a note."""
        self.notes.append(text)
        log.info(text)

    def take(self, metrics: StepMetrics, bounded: float, samples: Mapping[int, Sample], name: str) -> None:
        """Count a step that was taken, and log its metrics."""
        log.info("%s: %s", name, metrics.model_dump_json(exclude_none=True))
        self.steps.append(metrics)
        self.bounded += bounded
        self.trained |= samples.keys()
        self.acted |= {i for i, sample in samples.items() if sample.token_ids}


def update(
    model: TrainedModel, samples: Sequence[Sample], job: Job, policies: FixedPolicies, scale: LogitScale, peak: float = 0.0
) -> UpdateResult:
    """Take the job's optimizer steps.

    Args:
        peak: operations per second of all ranks' processors, for the metrics; 0: unknown.

    Raises:
        HarmfulUpdate: no step could be taken.
        ValueError: a minibatch has fewer samples than there are data-parallel ranks.
    """
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    places, settled = places_of(samples), uses_written_text(job)
    _check_minibatch(job, len(places), ranks)
    result, drift = UpdateResult(), safety.Drift(job.max_kl)
    context = job.context_tokens if job.context_weight else 0
    steps = list(minibatches(len(places), job.minibatch, math.ceil(job.epochs), job.seed))
    norms, passed_over = dict[int, float](), frozenset[int]()

    def taught_at(rows: Sequence[Sample], numbers: Sequence[int]) -> list[list[int]]:
        taught = ([i for i in places[n] if i not in passed_over and _teaches(rows[i], settled)] for n in numbers)
        return [some for some in taught if some]

    def refusal(rows: Sequence[Sample], step: Sequence[Sequence[int]]) -> str | None:
        return safety.empty_refusal([rows[i] for place in step for i in place], len(step), ranks)

    def accumulated(rows: Sequence[Sample], step: Sequence[Sequence[int]]) -> reports.Totals:
        own = [i for place in shares_of(rows, step, ranks, settled)[rank] for i in place]
        most = job.micro_batch_tokens, policies, context, settled, job.micro_batch_positions
        batches = micro_batches(rows, own, *most)
        if batches and not rank:
            batches[0] = replace(batches[0], left_out=left_out_tokens)
        return total(model.accumulate(objective_step(job, scale), batches, shape_of(batches)))

    for number, numbers in enumerate(steps, 1):
        if number == passes.whole_steps(len(steps), job.epochs) + 1:
            passed_over = passes.left_out(samples, places, norms, job.epochs)
        left_out_tokens = sum(len(samples[i].settled_token_ids) for n in numbers for i in places[n] if i in passed_over)
        rows, step = samples, taught_at(samples, numbers)
        start, cpu_start = time.perf_counter(), time.process_time()
        if reason := refusal(rows, step):
            result.note(f"step {number} refused: {reason}")
            continue
        totals = accumulated(rows, step)
        odd = safety.odd_token(totals, job.max_ratio)
        far = None if odd else drift.exceeded(totals)  # a step that is left out counts in no mean
        if odd or far:
            scale.drop_gradient()
            left_out = {i for n in numbers for i in places[n]} if odd else range(len(samples))
            rows = [without(s, sampled=True, settled=False) if i in left_out else s for i, s in enumerate(samples)]
        if far:
            samples = rows
            goes_on = any(_teaches(sample, settled) for sample in samples)
            rest = "the written text alone is trained on" if goes_on else "the other steps are left out"
            result.note(f"step {number} and on: {far}, {rest}")
            if not goes_on:
                break
        if odd or far:
            if reason := refusal(rows, step := taught_at(rows, numbers)):
                result.note(f"step {number} refused: {odd or reason}")
                continue
            if odd:
                result.note(f"step {number}: {odd}, its written text alone is trained on")
            totals = accumulated(rows, step)
        if reason := safety.step_refusal(totals, model.gradient_is_finite()):
            scale.drop_gradient()
            result.note(f"step {number} refused: {reason}")
            continue
        rate, trained = learning_rate(job, number, len(steps)), {i: rows[i] for place in step for i in place}
        norm = model.apply(rate)
        norms |= totals.norms
        scale.step(totals.sums.tokens + totals.sums.settled_tokens + left_out_tokens)
        taught, seconds, cpu_seconds = list(trained.values()), time.perf_counter() - start, time.process_time() - cpu_start
        readings = {"gradient_norm": norm, "logit_scale": scale.factor if job.logit_scale_rate else None, "learning_rate": rate}
        readings |= _speed(model, taught, job, seconds, cpu_seconds, peak)
        result.take(
            reports.metrics(totals, taught, job, readings), totals.sums.bounded, trained, f"step {number} of {len(steps)}"
        )
    if not result.steps:
        raise safety.HarmfulUpdate(f"no step was taken; {'; '.join(result.notes[:3])}")
    return result


def _teaches(sample: Sample, settled: bool) -> bool:
    return bool(sample.token_ids) or (settled and bool(sample.settled_token_ids))


def _speed(
    model: TrainedModel, rows: Sequence[Sample], job: Job, seconds: float, cpu_seconds: float, peak: float
) -> dict[str, float]:
    """Return a step's times, and its rates."""
    sizes = list(_sizes(rows, job))
    operations = flops.of_step(model.hf_config, sizes, job.frozen_layers, job.adapter_rank)
    return {
        **{"seconds": seconds, "cpu_seconds": cpu_seconds},
        "tokens_per_second": sum(length for length, _ in sizes) / seconds,
        "efficiency": operations / seconds / peak if peak else 0.0,
    }


def _check_minibatch(job: Job, places: int, ranks: int) -> None:
    smallest = min(map(len, minibatches(places, job.minibatch, 1, job.seed)))
    if smallest < ranks:
        raise ValueError(
            f"minibatch = {job.minibatch}: {places} places make a minibatch of {smallest}, expected one for each of "
            f"{ranks} data-parallel ranks; raise minibatch or train with fewer processes"
        )


def learning_rate(job: Job, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 1: a linear warm-up, and a linear decay over all steps."""
    warm = min(1.0, step / max(1, job.warmup_steps))
    return job.learning_rate * warm * (1 - (1 - job.final_rate) * (step - 1) / max(1, steps - 1))


def _sizes(samples: Sequence[Sample], job: Job) -> list[tuple[int, int]]:
    """Return for each row its tokens, and the number of positions at which logits are computed."""
    context = job.context_tokens if job.context_weight else 0
    rows = rows_of(samples, range(len(samples)), uses_written_text(job))
    return [size_of(samples, row, context) for row in rows]


def compare_with_server(model: TrainedModel, samples: Sequence[Sample], job: Job) -> safety.Agreement | None:
    """Compare trainer and server on samples of the current version, under the current weights; none without such samples.

    Raises:
        HarmfulUpdate: they differ by more than the job's bounds.
    """
    current = [i for i, s in enumerate(samples) if s.token_ids and s.policy_version == job.current_version]
    # The server did not sample completions that a cycle drew itself.
    current = [i for i in current if not is_drawn(samples[i])] or current
    compared = current[:: math.ceil(len(current) / AGREEMENT_SAMPLES) or 1]
    logprobs = current_logprobs(model, samples, compared, job.micro_batch_tokens, job.micro_batch_positions)
    # At a temperature T, the same difference of logits is 1 / T times as large.
    gaps = [
        samples[i].temperature * abs(a - b)
        for i, values in logprobs.items()
        for a, b in zip(values, samples[i].logprobs, strict=True)
    ]
    agreement = safety.agreement(gaps)
    safety.check_agreement(agreement, job.max_logprob_gap, job.max_logprob_gap_p99)
    return agreement


def check_memory(job: Job, config: dict[str, Any], samples: Sequence[Sample], memory: int) -> None:
    """Refuse an update whose largest micro-batch cannot fit, before the weights are loaded.

    Args:
        memory: bytes of this process.

    Raises:
        DoesNotFit: names the need, the memory and the settings that fit.
    """
    size = MicroBatchSize.largest(_sizes(samples, job), job.micro_batch_tokens, job.micro_batch_positions)
    layout = Layout(job.tensor_parallel, job.pipeline_parallel, parallel_state.get_data_parallel_world_size())
    check_fits(parse(config, str(job.checkpoint)), job, layout, size, memory, precision.in_bfloat16(job))


def read(job: Job, config: dict[str, Any]) -> list[Sample]:
    """Return the job's samples, whose tokens a rank reads where it packs them (stored.py); every rank calls it.

    Raises:
        ValueError: a sample is refused, on the first rank of each machine; the message names it, the field and what was expected.
    """
    node, first = node_and_place()
    shared = job.output / f"samples-{node}.arrow"
    if first:
        job.output.mkdir(parents=True, exist_ok=True)
        stored.store(job.samples, shared, config["vocab_size"], config["max_position_embeddings"])
    dist.barrier()
    samples = stored.opened(shared)
    dist.barrier()
    if first:
        shared.unlink()  # it stays mapped
    return samples


def load_model(job: Job, config: dict[str, Any]) -> TrainedModel:
    """Return the job's model, on its checkpoint and optimizer state."""
    optimization = Optimization(
        job.learning_rate,
        max_grad_norm=job.max_grad_norm,
        bf16=precision.in_bfloat16(job),
        frozen_layers=job.frozen_layers,
        adapter_rank=job.adapter_rank,
        adapter_seed=f"{job.seed} {job.current_version}",  # another subspace in each cycle, the same one in a repeated update
        distributed=job.distributed_optimizer,
    )
    parallel = Parallel(job.tensor_parallel, job.pipeline_parallel, job.sequence_parallel)
    model = TrainedModel(config, parallel, optimization, job.megatron_arguments, job.recompute, job.share_of_time)
    model.make_optimizer()
    load_parent(model, job)
    if job.optimizer:
        optimizer_state.load(model, job.optimizer)
    return model


def run(job: Job) -> Metrics:
    """Run the job, and write its checkpoint and metrics; every rank calls it.

    Raises:
        HarmfulUpdate: the update is refused; nothing is written.
        DoesNotFit: a process has too little memory; nothing is loaded.
        UnsuitablePrecision: the ranks' processors cannot compute together; nothing is loaded.
    """
    precision.check(job)
    clock = [("load", time.monotonic())]
    config = json.loads((job.checkpoint / "config.json").read_text())
    every = read(job, config)
    samples = taught_by(every, job)
    check_memory(job, config, trained_part(samples, job), process_memory())
    model = load_model(job, config)

    clock.append(("starting log-probabilities", time.monotonic()))
    agreement = compare_with_server(model, every, job)
    trained_rows = trained_part(samples, job)
    policies = fixed_policies(model, trained_rows, job)

    clock.append(("update", time.monotonic()))
    scale = LogitScale(job.logit_scale_rate)
    result = update(model, trained_rows, job, policies, scale, dist.get_world_size() * flops.peak(model.config.params_dtype))

    clock.append(("save", time.monotonic()))
    if job.keep_optimizer:
        optimizer_state.save(model, job.output / OPTIMIZER_NAME)
    if job.interpolation < 1:
        model.interpolate(job.interpolation)
    if job.adapter_rank:
        model.save_adapter(job.output / ADAPTER_NAME, probed(model, job))
    model.save(job.output / CHECKPOINT_NAME, torch.float32, job.checkpoint, scale.factor**job.interpolation, job.stored_mantissa)
    clock.append(("end", time.monotonic()))

    seconds = {name: end - begin for (name, begin), (_, end) in pairwise(clock)}
    metrics = metrics_of(trained_rows, len(every), result, agreement, seconds)
    if dist.get_rank() == 0:
        # metrics.json marks the update as complete: it is written last, and atomically.
        partial = job.output / f"{METRICS_NAME}.partial"
        partial.write_text(metrics.model_dump_json(indent=2))
        partial.rename(job.output / METRICS_NAME)
    return metrics


def metrics_of(
    samples: Sequence[Sample], count: int, result: UpdateResult, agreement: safety.Agreement | None, seconds: dict[str, float]
) -> Metrics:
    """Return an update's metrics; `count`: samples of the job, those without a target included."""
    trained = [samples[i] for i in sorted(result.trained)]
    scored = [samples[i] for i in sorted(result.acted)]
    tokens = sum(len(s.token_ids) for s in scored)
    return Metrics(
        samples=len(trained),
        skipped=count - len(trained),
        tokens=tokens,
        settled_tokens=sum(len(s.settled_token_ids) for s in trained),
        drawn=sum(is_drawn(sample) for sample in scored),
        mean_reward=sum(s.reward for s in scored) / len(scored) if scored else None,
        entropy=-sum(sum(s.logprobs) for s in scored) / tokens if scored else None,
        importance_clipped=result.bounded / max(sum(step.tokens for step in result.steps), 1) if scored else None,
        logprob_difference_mean=agreement.mean if agreement else None,
        logprob_difference_p99=agreement.p99 if agreement else None,
        logprob_difference_max=agreement.largest if agreement else None,
        steps=tuple(result.steps),
        notes=tuple(result.notes),
        seconds=seconds,
    )
