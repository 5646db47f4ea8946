"""Run cycles in processes that a test can kill at any moment: python -m tests.flows.kills

The process imports everything once. For each line of its input, pickled settings in hex, it forks a child that runs the steps of
the flow `cycle` without Prefect's engine. It prints the child's process id at the start and its exit status at the end. The
object store, its client, the order of the steps and all that they write are real. Stand-ins replace expectations, training,
scores and MLflow's runs; they return the same for the same samples.
"""

import hashlib
import logging
import os
import pickle
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prefect import Task

import flows.cycle as flow
import infra.settings
from infra.records import Manifest
from infra.settings import ROOT, Settings
from infra.storage.store import ObjectStore
from tasks.evaluation import evaluate
from tasks.labels.apart import T
from tasks.steps import collect, experiment, hold_out, joining, pages, reward, step, validate
from tasks.steps import evaluate as evaluate_step
from tasks.steps import train as train_step
from tasks.steps.context import Context
from tasks.trainer import run as training
from tasks.validation import pages as validation_pages
from tasks.validation import suite
from tasks.versions import register, tracking
from tests.tasks.evaluation.made_scores import scored_models, scores
from tests.tasks.made import metrics

CHUNKS, CHUNK_BYTES = 16, 1 << 17
"""A checkpoint has 2 MB, so that some kills hit its upload."""


def train(
    store: ObjectStore, manifest: Manifest, parent: Path, wanted: object, output: training.TrainerOutput, *_: object
) -> training.Candidate:
    """Write weights that depend on the samples alone, a chunk at a time."""
    checkpoint = output.folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    seed = hashlib.sha256(store.get(manifest.samples.key)).digest()
    with (checkpoint / "model.safetensors").open("wb") as file:
        for number in range(CHUNKS):
            file.write(hashlib.sha256(seed + bytes([number])).digest() * (CHUNK_BYTES // 32))
            file.flush()
            time.sleep(0.005)
    (checkpoint / "config.json").write_text("{}")
    return training.Candidate(checkpoint, metrics(), 1.0)


def checkpoint(context: Context, version: str) -> Path:
    """Return the folder of a version's checkpoint."""
    settings = context.settings
    folder = settings.train.folder / f"version-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(version)
    shutil.copy(ROOT / settings.model.base / "tokenizer.json", folder)
    return folder


def read_all(context: Context, _: object, name: str, work: Callable[[ObjectStore, Any], T], parts: Sequence[Any]) -> list[T]:
    """Read parts of a window, one after the other."""
    return [work(context.store, part) for part in parts]


def run(settings: Settings) -> None:
    """Run the flow once, with the stand-ins."""
    for module in (flow, experiment):
        for name, value in list(vars(module).items()):
            if isinstance(value, Task):
                setattr(module, name, value.fn)
    logging_ = (collect, evaluate_step, experiment, hold_out, reward, step, train_step, validate)
    stand_ins: list[tuple[Any, str, Any]] = [
        *((module, "get_run_logger", logging.getLogger) for module in logging_),
        (pages, "create_table_artifact", lambda *_, **__: None),
        (step, "create_markdown_artifact", lambda *_, **__: None),
        *((module, "read_all", read_all) for module in (joining, reward)),
        (Context, "checkpoint", checkpoint),
        (training, "train", train),
        (evaluate, "score", lambda *given: scored_models(scores(), sum(len(one.scored) for one in given[-1].held_out))),
        (suite, "validate", lambda samples, *_: suite.Validation(samples.height, 0, {}, ())),
        (validation_pages, "pages", lambda validation: {"samples": "<html></html>"}),
        (tracking, "log_steps_live", lambda settings, cycle, say, warn: nullcontext(say)),
        (register, "log_run", lambda *_: "run"),
        (infra.settings, "load", lambda: settings),
    ]
    for module, name, stand_in in stand_ins:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, stand_in)
    flow.cycle.fn()


def main() -> None:
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            code = 1
            try:
                run(pickle.loads(bytes.fromhex(line)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
