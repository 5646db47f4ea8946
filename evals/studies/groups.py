"""Make grouped samples: several completions at each of many places, scored by the judge, and a job to train on them.

python -m evals.studies.groups --out var/groups --positions 200

GRPO's setting (Shao et al. 2024, "DeepSeekMath", section 4.1.2): a group of completions at the same place and no value model.
Places lie where simulated developers type, never where models are scored. The reward is the score of `judged.judge` divided by
the highest score. `--estimator` selects how advantages are estimated. The trainer runs the written job as that of a cycle.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra import settings as configuration
from infra.records import Sample
from infra.settings import Settings
from infra.storage.store import to_parquet
from tasks.evaluation import judge as judges
from tasks.evaluation import positions
from tasks.evaluation.heldout import held_out_files, site_packages
from tasks.evaluation.judge.base import HIGHEST
from tasks.evaluation.models.generation import Generator
from tasks.rewards.reward import estimate_advantages
from tasks.trainer.run import command, write_job

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
) -> GroupedSamples:
    """Sample `group_size` completions at each place, score them, and estimate their advantages."""
    repeated = [place for place in places for _ in range(group_size)]
    sampling = settings.serving.sampling
    contexts = [(p.prefix, p.suffix) for p in repeated]
    completions = generator.sample(
        contexts, sampling.max_tokens, sampling.exploring_temperature, seed, whole=settings.judged.whole_text
    )
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the samples and the job, and print the training command. Exit code 1 if no group could be scored."""
    parser = argparse.ArgumentParser(prog="python -m evals.studies.groups", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--checkpoint", type=Path, help="policy (default: model.base)")
    add("--out", type=Path, default=Path("var/groups"), help="folder for samples, job and output (default %(default)s)")
    add("--positions", type=int, default=200, help="places (default %(default)s)")
    add("--group", type=int, default=8, help="completions at each place (default %(default)s)")
    add("--estimator", choices=("group", "return"), default="group", help="advantage estimator (default %(default)s)")
    add("--learning-rate", type=float, help="learning rate of the job (default: train.learning_rate)")
    add("--seed", type=int, default=0, help="seed of places and sampling (default %(default)s)")
    options = parser.parse_args(arguments)
    loaded = configuration.load()
    settings = loaded.model_copy(update={"reward": loaded.reward.model_copy(update={"estimator": options.estimator})})
    checkpoint = configuration.path(options.checkpoint or settings.model.base)
    sources = positions.developer_sources(positions.read_sources(held_out_files(), [site_packages()]))
    places = positions.sample_positions(sources, options.positions, options.seed)
    generator, judge = Generator(checkpoint, settings.model), judges.build(settings.judged.judge)
    grouped = sample_groups(generator, judge, places, options.group, settings, options.seed)
    if not grouped.samples:
        message = f"judge {judge.name}: scored none of {len(places)} groups, {grouped.failed} judgements failed"
        print(f"{message}; check the setting judged.judge", file=sys.stderr)
        return 1
    folder = configuration.path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.parquet").write_bytes(to_parquet(grouped.samples))
    # These samples have no settled text, so the surrogate teaches, whatever a cycle's update does.
    rate = options.learning_rate or settings.train.learning_rate
    training = settings.train.model_copy(update={"surrogate_weight": 1.0, "learning_rate": rate})
    job = write_job(folder, checkpoint, folder / "samples.parquet", VERSION, training)
    contrasting = len({s.prompt_token_ids for s in grouped.samples if s.advantage})
    print(
        f"{len(grouped.samples)} samples, mean reward {sum(s.reward for s in grouped.samples) / len(grouped.samples):.3f}, "
        f"{contrasting} places whose completions differ in reward, {grouped.failed} judgements failed; to train on them:\n"
        + " ".join(command(job, settings.train.processes))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
