"""Cycles of a recipe that a judge rewards: complete, judge, reward, train with the project's trainer; then the next."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.studies.judged import groups, user
from evals.studies.judged.settings import StudySettings
from evals.studies.judged.user import Taught
from infra.settings.training import Train
from infra.storage.store import to_parquet
from tasks.evaluation import judge as judges
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.trainer.job import CHECKPOINT_NAME, REFUSED_NAME
from tasks.trainer.run import TrainingFailed, command, follow, write_job

OURS, GROUP = "ours", "GRPO"
MakeSamples = Callable[[Generator, Sequence[Position], str, int], Taught]
"""Makes a cycle's samples, given the policy, the cycle's places, the policy's version and a seed."""


class NothingToLearn(RuntimeError):
    """The judge scored none of a cycle's completions."""


@dataclass(frozen=True)
class Trained:
    """The model that a recipe's cycles made."""

    checkpoint: Path
    rewards: tuple[float, ...]
    """Mean score of the rewarding judge in each cycle, 0 to 10."""
    failed: int
    """Completions that the rewarding judge could not score."""


def run(
    recipe: str,
    base: Path,
    places: Sequence[Position],
    settings: StudySettings,
    folder: Path,
    say: Callable[[str], None],
    ended: Callable[[], None] = lambda: None,
) -> Trained:
    """Run a recipe's cycles from the base on.

    Args:
        say: takes lines of progress.
        ended: called after each cycle.

    Raises:
        NothingToLearn: the judge scored none of a cycle's completions.
        TrainingFailed: the trainer failed.
    """
    checkpoint, rewards, failed, judge_name = base, [], 0, settings.judged.judge.called
    # These samples have no settled text: the surrogate teaches.
    training = settings.train.model_copy(update={"surrogate_weight": 1.0})
    make = samples_of(recipe, settings)
    for cycle, part in enumerate(parts_of(places, settings.judged.cycles, settings.judged.epochs), 1):
        generator = Generator(checkpoint, settings.model, dtype=settings.judged.dtype)
        taught = make(generator, part, f"{recipe}-{cycle}", cycle)
        if not taught.samples:
            raise NothingToLearn(
                f"{recipe}, cycle {cycle}: the judge {settings.judged.judge.called!r} scored none of {len(part)} places "
                f"({dict(taught.failed)}); check judged.judge, then run the command again"
            )
        work = folder / recipe / str(cycle)
        work.mkdir(parents=True, exist_ok=True)
        (work / "samples.parquet").write_bytes(to_parquet(taught.samples))
        rewards.append(taught.mean)
        failed += sum(taught.failed.values())
        say(f"{recipe}, cycle {cycle}: {len(taught.samples)} samples, mean score {taught.mean:.2f} by {judge_name}")
        checkpoint = trained_from(checkpoint, f"{recipe}-{cycle}", work, training, say)
        ended()
    return Trained(checkpoint, tuple(rewards), failed)


def trained_from(parent: Path, version: str, work: Path, training: Train, say: Callable[[str], None]) -> Path:
    """Return the checkpoint that the trainer makes of the samples in a folder; the parent where it refuses them."""
    job, refused = write_job(work, parent, work / "samples.parquet", version, training), work / REFUSED_NAME
    refused.unlink(missing_ok=True)
    try:
        follow(command(job, training.processes), work / "trainer.log", training.environment, lambda _: None)
    except TrainingFailed:
        if not refused.exists():
            raise
        say(f"{version}: {refused.read_text()}")
        return parent
    return work / CHECKPOINT_NAME


def parts_of(places: Sequence[Position], cycles: int, epochs: int) -> list[Sequence[Position]]:
    """Return the places of each cycle: `epochs` passes over all of them, in equal parts."""
    every = [*places] * epochs
    size = math.ceil(len(every) / cycles)
    return [every[start : start + size] for start in range(0, len(every), size)]


def samples_of(recipe: str, settings: StudySettings) -> MakeSamples:
    """Return how a recipe makes samples; each takes as many completions in a cycle as the cycle has places."""
    judge = judges.build(settings.judged.judge)
    if recipe == OURS:
        return lambda generator, places, version, seed: user.sample_accepts(generator, judge, places, settings, version, seed)
    reward = settings.reward.model_copy(update={"estimator": "group"})
    grouped, size = settings.model_copy(update={"reward": reward}), settings.judged.group

    def of_groups(generator: Generator, places: Sequence[Position], version: str, seed: int) -> Taught:
        made = groups.sample_groups(generator, judge, places[::size], size, grouped, seed, whole=settings.judged.whole_text)
        samples = tuple(sample.model_copy(update={"policy_version": version}) for sample in made.samples)
        mean = judges.HIGHEST * sum(sample.reward for sample in samples) / max(len(samples), 1)
        return replace(Taught(samples, mean), failed={"any": made.failed} if made.failed else {})

    return of_groups
