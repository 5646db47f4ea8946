"""The job and the trained models that the checks share.

For trainer processes only: it imports Megatron.
"""

import json
from pathlib import Path
from typing import NamedTuple

from tasks.trainer.model.process_group import Parallel, parallel_state, start
from tasks.trainer.model.trained_model import Optimization, TrainedModel

# isort: split
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Qwen2ForCausalLM

from evals.base_model.muon import MuonWithAdamW
from tasks.trainer.job import Job
from tasks.trainer.model.architecture import Recompute
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
    2: {
        **{"data": Parallel(), "tensor": Parallel(tensor=2), "pipeline": Parallel(pipeline=2)},
        "distributed": Parallel(),
    },
    4: {
        "data and tensor": Parallel(tensor=2),
        "data and pipeline": Parallel(pipeline=2),
        "tensor and pipeline": Parallel(tensor=2, pipeline=2),
    },
    8: {"data, tensor and pipeline": Parallel(tensor=2, pipeline=2)},
}

SHARING = {"distributed"}
"""Layouts with the distributed optimizer."""


class Variant(NamedTuple):
    """A layout with Megatron's means to need less memory."""

    parallel: Parallel
    distributed: bool = False
    recompute: Recompute = "none"


SEQUENCE, SEQUENCE_STAGED = Parallel(tensor=2, sequence=True), Parallel(tensor=2, pipeline=2, sequence=True)
VARIANTS = {
    1: {"one, full": Variant(Parallel(), recompute="full"), "one, selective": Variant(Parallel(), recompute="selective")},
    2: {
        "data, distributed": Variant(Parallel(), distributed=True),
        "tensor, sequence": Variant(SEQUENCE),
        "tensor, sequence, full": Variant(SEQUENCE, distributed=True, recompute="full"),
        "pipeline, full": Variant(Parallel(pipeline=2), distributed=True, recompute="full"),
    },
    4: {
        "data and tensor, sequence, distributed, full": Variant(SEQUENCE, distributed=True, recompute="full"),
        "data and pipeline, distributed, full": Variant(Parallel(pipeline=2), distributed=True, recompute="full"),
        "tensor and pipeline, sequence, selective": Variant(SEQUENCE_STAGED, recompute="selective"),
    },
    8: {"data, tensor and pipeline, all means": Variant(SEQUENCE_STAGED, distributed=True, recompute="full")},
}
"""Means in layouts, by the number of processes."""


def restart(parallel: Parallel) -> None:
    """Leave a layout for another one of the same processes."""
    parallel_state.destroy_model_parallel()
    start(parallel, 0)


def trained_model(
    directory: Path,
    parallel: Parallel,
    bf16: bool = False,
    distributed: bool = False,
    recompute: Recompute = "none",
    **config: object,
) -> TrainedModel:
    """Load a saved model into the trainer's model; `config` overrides values of its configuration."""
    configuration = json.loads((directory / "config.json").read_text()) | config
    optimization = Optimization(JOB.learning_rate, bf16=bf16, distributed=distributed)
    trained = TrainedModel(configuration, parallel, optimization, recompute=recompute)
    trained.make_optimizer()
    trained.load(directory)
    return trained


def pretrained(directory: Path, parallel: Parallel) -> TrainedModel:
    """Load a saved model into a trainer's model that Muon optimises."""
    config = json.loads((directory / "config.json").read_text())
    trained = TrainedModel(config, parallel, Optimization(5e-3, bf16=True))
    trained.make_optimizer(MuonWithAdamW)
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
