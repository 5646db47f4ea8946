"""The job and the trained models that the checks share.

For trainer processes only: it imports Megatron.
"""

import json
from pathlib import Path

from tasks.trainer.model.process_group import Parallel
from tasks.trainer.model.trained_model import Optimization, TrainedModel

# isort: split
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Qwen2ForCausalLM

from tasks.trainer.job import Job
from tasks.trainer.model.convert import full_weights
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
    4: {
        "data and tensor": Parallel(tensor=2),
        "data and pipeline": Parallel(pipeline=2),
        "tensor and pipeline": Parallel(tensor=2, pipeline=2),
    },
    8: {"data, tensor and pipeline": Parallel(tensor=2, pipeline=2)},
}


def trained_model(directory: Path, parallel: Parallel, bf16: bool = False, **config: object) -> TrainedModel:
    """Load a saved model into the trainer's model; `config` overrides values of its configuration."""
    configuration = json.loads((directory / "config.json").read_text()) | config
    trained = TrainedModel(configuration, parallel, Optimization(JOB.learning_rate, bf16=bf16))
    trained.make_optimizer()
    trained.load(directory)
    return trained


def pretrained(directory: Path, parallel: Parallel) -> TrainedModel:
    """Load a saved model into a trainer's model that Muon optimises."""
    config = json.loads((directory / "config.json").read_text())
    trained = TrainedModel(config, parallel, Optimization(5e-3, optimizer="muon", bf16=True))
    trained.make_optimizer()
    trained.load(directory)
    return trained


def weights_of(trained: TrainedModel) -> dict[str, torch.Tensor]:
    """Return copies of all weights, in float32 masters if the model has them."""
    return {name: tensor.clone() for name, tensor in full_weights(trained.megatron)}


def write_job(work: Path, model: Qwen2ForCausalLM) -> Job:
    """Write job.json over samples of the model, and return the job with another output folder.

    The checkpoint has several files, as large ones do.
    """
    model.save_pretrained(work / "sharded", max_shard_size="100KB")
    rows = [s.model_dump() for s in samples(model, drift=0.0)]
    pq.write_table(pa.Table.from_pylist(rows), work / "samples.parquet")
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
