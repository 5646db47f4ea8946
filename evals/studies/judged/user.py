"""A simulated developer whose Tab key is a judge: a completion is accepted where its score reaches a threshold.

As in RLinf's online example (2025, "Cursor online reinforcement learning", section 4), with one completion for each request.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evals.studies.judged.settings import StudySettings
from infra.records import Sample
from tasks.evaluation import judge as judges
from tasks.evaluation.models.generation import Generator, SampledCompletion
from tasks.evaluation.positions import Position
from tasks.rewards.reward import reward_of_samples

USER = "judge"


@dataclass(frozen=True)
class Taught:
    """What a cycle learns from."""

    samples: tuple[Sample, ...]
    """With reward and advantage."""
    mean: float
    """Mean score of the rewarding judge, 0 to 10."""
    failed: Mapping[str, int] = field(default_factory=Counter)
    """Number of completions that it could not score, by kind; they are in no sample."""


def sample_accepts(
    generator: Generator, judge: judges.Judge, places: Sequence[Position], settings: StudySettings, version: str, seed: int
) -> Taught:
    """Complete each place once, let the judge accept or reject, and return the samples."""
    sampling, whole = settings.serving.sampling, settings.judged.whole_text
    temperature, contexts = sampling.exploring_temperature, [(place.prefix, place.suffix) for place in places]
    completions = generator.sample(contexts, sampling.max_tokens, temperature, seed, whole=whole)
    scores = judge.score([item_of(place, made) for place, made in zip(places, completions, strict=True)])
    samples, known, failed = [], [], Counter[str]()
    for number, (made, score) in enumerate(zip(completions, scores, strict=True)):
        if isinstance(score, judges.Failed):
            failed[score.kind] += 1
            continue
        known.append(score.score)
        accepted = score.score >= settings.judged.threshold
        samples.append(judged_sample(f"{version}-{number}", version, made, accepted, temperature))
    mean = sum(known) / len(known) if known else float("nan")
    return Taught(tuple(reward_of_samples(samples, settings.reward)), mean, failed)


def item_of(place: Position, made: SampledCompletion) -> judges.Item:
    """Return a completion as the judge reads it."""
    return judges.Item(place.prefix, place.suffix, made.text.rstrip("\n"), place.truth)


def judged_sample(name: str, version: str, made: SampledCompletion, accepted: bool, temperature: float) -> Sample:
    """Return a completion with the judge's decision as a sample of a developer; blank text is never shown."""
    shown = len(made.text.rstrip("\n")) if made.text.strip() else 0
    return Sample(
        completion_id=name,
        user=USER,
        policy_version=version,
        prompt_token_ids=made.prompt,
        token_ids=made.tokens,
        logprobs=tuple(min(value, 0.0) for value in made.logprobs),
        temperature=temperature,
        outcome="nothing" if not shown else "accepted" if accepted else "rejected",
        shown_characters=shown,
        accepted_characters=shown if accepted else 0,
    )
