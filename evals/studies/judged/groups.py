"""Grouped samples, as GRPO uses them: several completions at each of many positions, scored by a judge.

A group is of the same position, and there is no value model (Shao et al. 2024, "DeepSeekMath", section 4.1.2). The reward is the
judge's score divided by the highest score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.records import Sample
from infra.settings import Settings
from infra.storage.store import to_parquet
from tasks.evaluation import judge as judges
from tasks.evaluation import positions
from tasks.evaluation.judge.base import HIGHEST
from tasks.evaluation.models.generation import Generator
from tasks.rewards.reward import estimate_advantages
from tasks.trainer.run import write_job

VERSION = "offline"


@dataclass(frozen=True)
class GroupedSamples:
    """Grouped samples, and the number of completions without a score."""

    samples: tuple[Sample, ...]
    """Samples with reward and advantage, one group after the other."""
    failed: int
    """Number of completions that the judge could not score. Their groups have no samples."""


def sample_groups(
    generator: Generator,
    judge: judges.Judge,
    places: Sequence[positions.Position],
    group_size: int,
    settings: Settings,
    seed: int,
    *,
    whole: bool = False,
) -> GroupedSamples:
    """Sample `group_size` completions at each place, score them, and estimate their advantages by `reward.estimator`.

    Args:
        whole: whether completions have further lines.
    """
    repeated = [place for place in places for _ in range(group_size)]
    sampling = settings.serving.sampling
    contexts = [(p.prefix, p.suffix) for p in repeated]
    completions = generator.sample(contexts, sampling.max_tokens, sampling.exploring_temperature, seed, whole=whole)
    items = [judges.Item(p.prefix, p.suffix, d.text.rstrip("\n"), p.truth) for p, d in zip(repeated, completions, strict=True)]
    scores = judge.score(items)
    samples: list[Sample] = []
    for start in range(0, len(repeated), group_size):
        if any(isinstance(score, judges.Failed) for score in scores[start : start + group_size]):
            continue
        for number in range(start, start + group_size):
            score, completion, item = scores[number], completions[number], items[number]
            assert isinstance(score, judges.Scored)
            samples.append(
                Sample(
                    completion_id=f"offline-{seed}-{number}",
                    user="judge",
                    policy_version=VERSION,
                    prompt_token_ids=completion.prompt,
                    token_ids=completion.tokens,
                    logprobs=tuple(min(value, 0.0) for value in completion.logprobs),
                    temperature=sampling.exploring_temperature,
                    outcome="judged",
                    shown_characters=len(item.completion),
                    accepted_characters=0,
                    reward=score.score / HIGHEST,
                )
            )
    columns = [s.reward for s in samples], [len(s.token_ids) for s in samples], [s.prompt_token_ids for s in samples]
    advantages = estimate_advantages(*columns, settings.reward)
    failed = sum(isinstance(score, judges.Failed) for score in scores)
    return GroupedSamples(tuple(s.model_copy(update={"advantage": a}) for s, a in zip(samples, advantages, strict=True)), failed)


def write_update(folder: Path, parent: Path, samples: Sequence[Sample], settings: Settings) -> Path:
    """Write samples and a job that trains a checkpoint on them to a folder; return the job's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.parquet").write_bytes(to_parquet(samples))
    # These samples have no settled text, so the surrogate teaches, whatever a cycle's update does.
    training = settings.train.model_copy(update={"surrogate_weight": 1.0})
    return write_job(folder, parent, folder / "samples.parquet", VERSION, training)
