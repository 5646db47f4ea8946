"""A cycle in a process of its own that may be killed at any moment: python -m tests.flows.kills

Everything is imported once. For each line of the input, pickled settings in hex, a process is forked that runs the flow `cycle`
to its end: the steps themselves, without Prefect's engine around them. Its id is printed when it starts, its status at its end.
Real are the object store and its client, the order of the steps and all that they write; expectations, training, scores and
MLflow's runs are played, the same for the same samples.
"""

import hashlib
import logging
import os
import pickle
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prefect import Task

import infra.settings
from flows.cycle import cycle
from infra.records import Manifest
from infra.settings import Settings
from infra.store import ObjectStore
from tasks.labels import partitions
from tasks.steps import clients, step
from tasks.steps import cycle as steps
from tasks.trainer import run as training
from tasks.validation import suite
from tasks.versions import evaluate, register, tracking
from tests.tasks.made import metrics
from tests.tasks.versions.test_evaluate import scores

PIECES, PIECE = 16, 1 << 17
"""A checkpoint of 2 MB, so that a kill may well hit its upload."""


def trained(store: ObjectStore, manifest: Manifest, parent: Path, wanted: object, folder: Path, *_: object) -> training.Candidate:
    """Weights that its samples decide, written a piece at a time."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    seed = hashlib.sha256(store.get(manifest.samples.key)).digest()
    with (checkpoint / "model.safetensors").open("wb") as file:
        for number in range(PIECES):
            file.write(hashlib.sha256(seed + bytes([number])).digest() * (PIECE // 32))
            file.flush()
            time.sleep(0.005)
    (checkpoint / "config.json").write_text("{}")
    return training.Candidate(checkpoint, metrics(), 1.0)


def champion(settings: Settings, version: str) -> Path:
    folder = settings.train.folder / f"version-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(version)
    return folder


def run(settings: Settings) -> None:
    """One run of the flow."""
    for name, value in list(vars(steps).items()):
        if isinstance(value, Task):
            setattr(steps, name, value.fn)
    played: list[tuple[Any, str, Any]] = [
        (steps, "get_run_logger", logging.getLogger),
        (steps, "create_table_artifact", lambda *_, **__: None),
        (step, "get_run_logger", logging.getLogger),
        (step, "create_markdown_artifact", lambda *_, **__: None),
        (steps, "join_all", lambda given, window: [partitions.join_partition(clients.store_of(given), part) for part in window]),
        (clients, "checkpoint_of", champion),
        (training, "train", trained),
        (evaluate, "score", lambda *_: scores(6.0)),
        (suite, "validate", lambda samples, *_: suite.Validation(samples.height, 0, {}, ())),
        (suite, "docs", lambda results: {"samples": "<html></html>"}),
        (tracking, "log_steps_live", lambda settings, cycle, say, warn: nullcontext(say)),
        (register, "log_run", lambda *_: "run"),
        (infra.settings, "load", lambda: settings),
    ]
    for module, name, player in played:
        setattr(module, name, player)
    cycle.fn()


def main() -> None:
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            code = 1
            try:
                run(pickle.loads(bytes.fromhex(line)))
                code = 0
            finally:
                os._exit(code)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
