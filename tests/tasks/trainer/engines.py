"""The job and the engines that the checks share.

For trainer processes alone: Megatron comes with it.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Qwen2ForCausalLM

from tasks.trainer.job import Job
from tasks.trainer.model.convert import full_weights
from tasks.trainer.model.engine import Optimization, Parallel, TrainedModel
from tests.tasks.trainer.models import CURRENT, samples

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
LAYOUTS = {
    1: {"one": Parallel()},
    2: {"data": Parallel(), "tensor": Parallel(tensor=2), "pipeline": Parallel(pipeline=2)},
    4: {"tensor and data": Parallel(tensor=2)},
}


def engine_of(directory: Path, parallel: Parallel, bf16: bool = False, **config: object) -> TrainedModel:
    """The trainer's engine over a saved model, with some of its configuration changed."""
    described = json.loads((directory / "config.json").read_text()) | config
    engine = TrainedModel(described, parallel, Optimization(JOB.learning_rate, bf16=bf16))
    engine.make_optimizer()
    engine.load(directory)
    return engine


def pretrained(directory: Path, parallel: Parallel) -> TrainedModel:
    """An engine with Muon over a saved model."""
    described = json.loads((directory / "config.json").read_text())
    engine = TrainedModel(described, parallel, Optimization(5e-3, optimizer="muon", bf16=True))
    engine.make_optimizer()
    engine.load(directory)
    return engine


def weights_of(engine: TrainedModel) -> dict[str, torch.Tensor]:
    """All weights, the masters where there are any."""
    return {name: tensor.clone() for name, tensor in full_weights(engine.model)}


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
