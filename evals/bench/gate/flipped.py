"""Trained with the reward's sign flipped, by the project's trainer: groups of completions, each scored by the embedded judge.

Beside it, the same samples with the reward as it is: what the gate sees is the sign.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.bench.gate.models import QUALITY
from evals.bench.trainer import run_process
from infra.records import Sample
from infra.storage.store import from_parquet, to_parquet

FLIPPED, CONTROL = "reward_flipped", "reward"
PLACES, GROUP = 96, 8
GUARDRAILS = QUALITY | {"longer", "shorter", "repetition"}
"""One of these must see it."""
SAMPLES, JOB = "samples.parquet", "job.json"


def train(folder: Path) -> dict[str, Path]:
    """Return the checkpoints trained on the reward and on its opposite, by name.

    Raises:
        RuntimeError: sampling or training failed.
    """
    control, opposite = folder / CONTROL, folder / FLIPPED
    for work in (control, opposite):
        work.mkdir(parents=True)
    sampling = ("-m", "evals.studies.groups", "--out", str(control), "--positions", str(PLACES), "--group", str(GROUP))
    run_process((sys.executable, *sampling), control / "groups.log")
    samples = from_parquet((control / SAMPLES).read_bytes(), Sample)
    (opposite / SAMPLES).write_bytes(to_parquet(flipped(samples)))
    job = json.loads((control / JOB).read_text())
    (opposite / JOB).write_text(json.dumps(job | {"samples": str(opposite / SAMPLES), "output": str(opposite)}))
    for work in (control, opposite):
        run_process((sys.executable, "-m", "tasks.trainer.worker", "--job", str(work / JOB)), work / "trainer.log")
    return {work.name: work / "checkpoint" for work in (control, opposite)}


def flipped(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples of the opposite reward; a group's advantages change their sign with it."""
    return [sample.model_copy(update={"reward": -sample.reward, "advantage": -sample.advantage}) for sample in samples]
