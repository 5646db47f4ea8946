"""Trained with the reward's sign flipped, by the project's trainer: groups of completions, each scored by the embedded judge.

Beside it, the same samples with the reward as it is: the gate must see the sign.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from evals.bench.trainer import run_process
from evals.studies.gate.models import QUALITY
from evals.studies.judged import cycles
from infra import settings as configuration
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Judge
from tasks.evaluation import judge as judges
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position

FLIPPED, CONTROL = "reward_flipped", "reward"
PLACES, GROUP = 96, 8
GUARDRAILS = QUALITY | {"longer", "shorter", "repetition"}
"""One of these must see it."""


def train(folder: Path, places: Sequence[Position], settings: Settings) -> dict[str, Path]:
    """Return the checkpoints trained on the reward and on its opposite, by name.

    Raises:
        RuntimeError: training failed.
    """
    base, judge = configuration.path(settings.model.base), judges.build(Judge(kind="kept"))
    samples = cycles.sample_groups(Generator(base, settings.model), judge, places, GROUP, settings, seed=0).samples
    trained = {}
    for name, taught in ((CONTROL, samples), (FLIPPED, flipped(samples))):
        job = cycles.write_update(folder / name, base, taught, settings)
        run_process((sys.executable, "-m", "tasks.trainer.worker", "--job", str(job)), folder / name / "trainer.log")
        trained[name] = folder / name / "checkpoint"
    return trained


def flipped(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples of the opposite reward; a group's advantages change their sign with it."""
    return [sample.model_copy(update={"reward": -sample.reward, "advantage": -sample.advantage}) for sample in samples]
