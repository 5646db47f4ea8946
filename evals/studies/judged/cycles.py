"""Cycles of a recipe that a judge rewards: complete, score, reward, and train with the project's trainer; then the next.

Two recipes make samples. `ours`: a simulated developer accepts a completion whose score reaches a threshold, as in RLinf's online
example (2025, "Cursor online reinforcement learning", section 4), with one completion for each request. `GRPO`: groups of
completions of the same position, without a value model (Shao et al. 2024, "DeepSeekMath", section 4.1.2, here with a
leave-one-out baseline and without the deviation); the reward is the score divided by the highest score. Both are actions of the
objective that a cycle has (tasks/rewards/actions.py).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.base_model import update
from evals.studies.judged.settings import StudySettings, name_of
from infra.records import Sample
from infra.settings import Settings
from serving.slots.policy import EXPLORING_TEMPERATURE
from tasks.evaluation import judge as judges
from tasks.evaluation.models.base import SampledCompletion
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.rewards.actions import decide
from tasks.rewards.reward import DrawnAction
from tasks.trainer.job import REFUSED_NAME
from tasks.trainer.run import TrainingFailed

OURS, GROUP = "ours", "GRPO"
VERSION = "offline"


class NothingToLearn(RuntimeError):
    """The judge scored none of a cycle's completions."""


@dataclass(frozen=True)
class Taught:
    """Samples that a judge rewards."""

    samples: tuple[Sample, ...]  # with reward and advantage; of groups, one after the other
    mean: float  # mean score of the samples, 0 to 10
    failed: Counter[str]  # number of completions that the judge could not score, by kind; they and their groups have no sample


@dataclass(frozen=True)
class Trained:
    """The model that a recipe's cycles made."""

    checkpoint: Path
    rewards: tuple[float, ...]  # mean score of the rewarding judge in each cycle, 0 to 10
    failed: int  # completions that the rewarding judge could not score


def run(
    recipe: str,
    base: Path,
    positions: Sequence[Position],
    settings: StudySettings,
    folder: Path,
    say: Callable[[str], None],
    ended: Callable[[], None],
) -> Trained:
    """Run a recipe's cycles, the first from the base.

    `say`: takes lines of progress; `ended`: called after each cycle. Raises NothingToLearn where the judge scored none of a
    cycle's completions. Raises TrainingFailed where the trainer failed.
    """
    checkpoint, rewards, failed, judged = base, [], 0, settings.judged
    judge, name = judges.build(judged.judge), name_of(judged.judge)
    for cycle, part in enumerate(parts_of(positions, judged.cycles, judged.epochs), 1):
        generator, version = Generator(checkpoint, settings.model, dtype=judged.dtype), f"{recipe}-{cycle}"
        if recipe == OURS:
            taught = sample_accepts(generator, judge, part, settings, version, cycle)
        else:  # as many completions as there are positions
            taught = sample_groups(
                generator,
                judge,
                part[:: judged.group],
                judged.group,
                settings,
                cycle,
                version=version,
                whole=judged.whole_text,
                temperature=judged.temperature,
            )
        if not taught.samples:
            raise NothingToLearn(
                f"{recipe}, cycle {cycle}: the judge {name!r} scored none of {len(part)} positions "
                f"({dict(taught.failed)}); check judged.judge, then run the command again"
            )
        rewards.append(taught.mean)
        failed += taught.failed.total()
        say(f"{recipe}, cycle {cycle}: {len(taught.samples)} samples, mean score {taught.mean:.2f} by {name}")
        checkpoint = _trained(folder / recipe / str(cycle), checkpoint, taught.samples, settings, version, say)
        ended()
    return Trained(checkpoint, tuple(rewards), failed)


def parts_of(positions: Sequence[Position], cycles: int, epochs: int) -> list[Sequence[Position]]:
    """Return the positions of each cycle: `epochs` passes over all of them, in equal parts."""
    every = [*positions] * epochs
    size = math.ceil(len(every) / cycles)
    return [every[start : start + size] for start in range(0, len(every), size)]


def sample_accepts(
    generator: Generator, judge: judges.Judge, positions: Sequence[Position], settings: StudySettings, version: str, seed: int
) -> Taught:
    """Complete each position once, accept by the judge's score, and return the samples; blank text is never shown."""
    temperature, whole = settings.judged.temperature, settings.judged.whole_text
    completions, scores = complete_and_score(generator, judge, positions, settings, temperature, seed, whole)
    samples, known = [], []
    for number, (made, score) in enumerate(zip(completions, scores, strict=True)):
        if isinstance(score, judges.Scored):
            known.append(score.score)
            accepted, shown = score.score >= settings.judged.threshold, len(made.text.rstrip("\n")) if made.text.strip() else 0
            outcome = "nothing" if not shown else "accepted" if accepted else "rejected"
            counts = {"shown_characters": shown, "accepted_characters": shown if accepted else 0}
            samples.append(_sample(f"{version}-{number}", version, made, temperature, outcome=outcome, **counts))
    mean = sum(known) / len(known) if known else math.nan
    return Taught(tuple(update.rewarded(samples, settings.reward)), mean, _failures(scores))


def sample_groups(
    generator: Generator,
    judge: judges.Judge,
    positions: Sequence[Position],
    group_size: int,
    settings: Settings,
    seed: int,
    *,
    version: str = VERSION,
    whole: bool = False,
    temperature: float = EXPLORING_TEMPERATURE,
) -> Taught:
    """Sample `group_size` completions at each position, score them, and estimate their advantages within each group."""
    repeated = [position for position in positions for _ in range(group_size)]
    completions, scores = complete_and_score(generator, judge, repeated, settings, temperature, seed, whole)
    actions: list[DrawnAction] = []
    for start in range(0, len(repeated), group_size):
        known = [score.score for score in scores[start : start + group_size] if isinstance(score, judges.Scored)]
        for number, score in enumerate(known if len(known) == group_size else (), start):
            made = completions[number]
            values = {"shown_characters": len(made.text.rstrip("\n")), "reward": score / judges.HIGHEST, "outcome": "judged"}
            place = f"offline-{seed}-{start // group_size}"
            sample = _sample(f"{place}/drawn-{number - start + 1}", version, made, temperature, **values)
            actions.append(DrawnAction(sample, place, "drawn", 1 / group_size))
    among_themselves = settings.reward.model_copy(update={"silence": False})
    found = decide([], [one.action for one in actions], (), among_themselves, ("drawn",))
    taught = tuple(one.sample.model_copy(update={"advantage": a}) for one, a in zip(actions, found, strict=True))
    mean = sum(one.sample.reward for one in actions) / max(len(actions), 1)
    return Taught(taught, judges.HIGHEST * mean, _failures(scores))


def complete_and_score(
    generator: Generator,
    judge: judges.Judge,
    positions: Sequence[Position],
    settings: Settings,
    temperature: float,
    seed: int,
    whole: bool,
) -> tuple[Sequence[SampledCompletion], Sequence[judges.Judgement]]:
    contexts = [(position.prefix, position.suffix) for position in positions]
    made = generator.sample(contexts, settings.serving.sampling.max_tokens, temperature, seed, whole=whole)
    pairs = zip(positions, made, strict=True)
    return made, judge.score([judges.Item(p.prefix, p.suffix, one.text.rstrip("\n"), p.truth) for p, one in pairs])


def write_update(folder: Path, parent: Path, samples: Sequence[Sample], settings: Settings, version: str = VERSION) -> Path:
    """Write samples and a job that trains a checkpoint on them to a folder; return the job's file.

    The samples have no settled text, so the served and drawn actions teach, whatever a cycle's update does. A minibatch counts
    places: it has as many completions as the settings ask for, and one place of each process at least.
    """
    train = settings.train
    share = len({sample.prompt_token_ids for sample in samples}) / max(len(samples), 1)
    changes = {
        **{"actions": ("served", "drawn"), "surrogate_weight": 1.0},
        "minibatch": max(train.processes, round(train.minibatch * share)),
    }
    return update.job_of(folder, parent, samples, version, train.model_copy(update=changes))


def _failures(scores: Sequence[judges.Judgement]) -> Counter[str]:
    return Counter(score.kind for score in scores if isinstance(score, judges.Failed))


def _sample(name: str, version: str, made: SampledCompletion, temperature: float, **values: Any) -> Sample:
    drawn = {"token_ids": made.tokens, "logprobs": tuple(min(value, 0.0) for value in made.logprobs), "temperature": temperature}
    return update.sample(name, made.prompt, user="judge", policy_version=version, **drawn, **values)


def _trained(
    work: Path, parent: Path, samples: Sequence[Sample], settings: Settings, version: str, say: Callable[[str], None]
) -> Path:
    """Return the checkpoint that the trainer makes of samples; the parent if it refuses them."""
    job, refused = write_update(work, parent, samples, settings, version), work / REFUSED_NAME
    refused.unlink(missing_ok=True)
    try:
        return update.train(job, settings.train)
    except TrainingFailed:
        if not refused.exists():
            raise
        say(f"{version}: {refused.read_text()}")
        return parent
