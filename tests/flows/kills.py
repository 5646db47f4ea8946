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
from tasks import evaluate, partitions, register, steps, tracking, train, validate
from tests.tasks.made import metrics
from tests.tasks.test_evaluate import scores

PIECES, PIECE = 16, 1 << 17
"""A checkpoint of 2 MB, so that a kill may well hit its upload."""


def trained(store: ObjectStore, manifest: Manifest, parent: Path, wanted: object, folder: Path, *_: object) -> train.Trained:
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
    return train.Trained(checkpoint, metrics(), 1.0)


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
        (steps, "create_markdown_artifact", lambda *_, **__: None),
        (steps, "spread", lambda given, window: [partitions.sift(steps.store_of(given), part) for part in window]),
        (steps, "checkpoint_of", champion),
        (train, "train", trained),
        (evaluate, "score", lambda *_: scores(6.0)),
        (validate, "validate", lambda samples, *_: validate.Validation(samples.height, 0, {}, ())),
        (validate, "docs", lambda results: {"samples": "<html></html>"}),
        (tracking, "told", lambda settings, cycle, say, warn: nullcontext(say)),
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
