"""Compare what three recipes learn at the same places: python -m tasks.bench_recipes

- tabloop: signed rewards, the served tokens with the log-probabilities recorded at sampling, and the served temperature.
- rlinf, as in RLinf's online example (infra/docs/loop.md, "How recipes are compared"): the reward, 1 or 0, is the advantage. The
  shown text is tokenised again without its end token. The current weights compute the "old" log-probabilities. Temperature 0.1.
- group (GRPO): groups of 8 completions at every 8th place (tasks/groups.py). The reward is the likeness to the source's own
  text there, so no developer takes part. All other options are those of tabloop.

All recipes start from the base model. For each seed, the same simulated developers pause at the same places. The gain is the
difference in acceptance between the trained model and the base, at other places that are the same for all recipes, each at the
temperature of its recipe. No server takes part. The figures are written to var/bench/recipes.json.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import numpy as np
import polars as pl
from rich.console import Console
from tokenizers import Tokenizer

from evals.bench.figures import Figure, figure, write
from evals.developers import ExpectedOutcome, Pause, Quirks, Schedule, code_from
from evals.generation import Generator, SampledCompletion
from evals.judge import ReferenceJudge
from evals.statistics import margin, ratio
from infra import settings as configuration
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Reward, Train
from infra.store import to_parquet
from tasks import groups
from tasks.rewards.reward import UNKNOWN_LANGUAGE, with_advantages
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import command, follow, write_job

Recipe = Literal["tabloop", "rlinf", "group"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
GROUP_SIZE = 8
RLINF_TEMPERATURE = 0.1
RLINF_REWARD = Reward(accepted=1.0, rejected=0.0, nothing=0.0, baseline="none", normalise=False)
REQUIRED_GAIN_RATIO = 2.0


@dataclass(frozen=True)
class Plan:
    """A run of one recipe with one seed."""

    recipe: Recipe
    seed: int
    users: int
    interactions: int
    """Completions shown to developers between two updates."""
    updates: int
    places: int
    """Places at which the base and the trained model are compared."""
    folder: Path


@dataclass(frozen=True)
class Gain:
    """Outcomes of the base and of the trained model at the same places, and the user at each place."""

    users: tuple[str, ...]
    accepted: tuple[np.ndarray, np.ndarray]
    """Expected accepts of each place, [places], of the base and of the trained model."""
    characters: tuple[np.ndarray, np.ndarray]
    """Expected accepted characters at each place, [places], of the base and of the trained model."""


def serving_temperature(recipe: Recipe, settings: Settings) -> float:
    """Return the temperature at which the recipe serves."""
    return RLINF_TEMPERATURE if recipe == "rlinf" else settings.serving.sampling.temperature


def complete(
    checkpoint: Path, pauses: Sequence[Pause], temperature: float, seed: int, settings: Settings
) -> list[SampledCompletion]:
    """Sample a completion at each pause."""
    generator = Generator(checkpoint, settings.model)
    return generator.sample(
        [(pause.prefix, pause.suffix) for pause in pauses], settings.serving.sampling.max_tokens, temperature, seed
    )


def tabloop_samples(
    pauses: Sequence[Pause], completions: Sequence[SampledCompletion], settings: Settings, version: str
) -> list[Sample]:
    """Return the samples of tabloop's recipe, as a cycle makes them."""
    samples = [
        labelled_sample(number, version, pause, completion, settings.serving.sampling.temperature)
        for number, (pause, completion) in enumerate(zip(pauses, completions, strict=True))
    ]
    return with_rewards(samples, settings.reward)


def with_rewards(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """Return the samples with reward and advantage."""
    columns = ("outcome", "shown_characters", "accepted_characters")
    frame = pl.DataFrame({name: [getattr(sample, name) for sample in samples] for name in columns})
    lengths = [len(sample.token_ids) for sample in samples]
    frame = frame.with_columns(tokens=pl.Series(lengths), prompt=pl.int_range(len(samples)), language=pl.lit(UNKNOWN_LANGUAGE))
    rewards = with_advantages(frame, settings).select("reward", "advantage").iter_rows(named=True)
    return [sample.model_copy(update=values) for sample, values in zip(samples, rewards, strict=True)]


def labelled_sample(number: int, version: str, pause: Pause, completion: SampledCompletion, temperature: float) -> Sample:
    """Return a labelled completion as a sample."""
    outcome, judgement = pause.judge(completion.text)
    accepted = judgement is not None and judgement.accepted
    return Sample(
        completion_id=str(number),
        user=pause.developer.name,
        policy_version=version,
        prompt_token_ids=completion.prompt,
        token_ids=completion.tokens,
        logprobs=tuple(min(value, 0.0) for value in completion.logprobs),
        temperature=temperature,
        outcome="nothing" if judgement is None else "accepted" if accepted else "rejected",
        shown_characters=len(outcome.shown),
        accepted_characters=len(outcome.shown) * accepted,
    )


def rlinf_samples(
    pauses: Sequence[Pause], completions: Sequence[SampledCompletion], checkpoint: Path, settings: Settings, version: str
) -> list[Sample]:
    """Return samples as RLinf's online example makes them: the shown text, tokenised again and scored by the current weights."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [pause.judge(completion.text)[0].shown for pause, completion in zip(pauses, completions, strict=True)]
    tokens = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    nonempty = [number for number, ids in enumerate(tokens) if ids]  # a client sends no feedback on empty text
    scores = Generator(checkpoint, settings.model).score([(completions[number].prompt, tokens[number]) for number in nonempty])
    samples = [
        labelled_sample(
            number,
            version,
            pauses[number],
            replace(completions[number], tokens=tuple(tokens[number]), logprobs=tuple(logprobs)),
            1.0,
        )
        for number, logprobs in zip(nonempty, scores, strict=True)
    ]
    return with_rewards(samples, RLINF_REWARD)


def group_samples(pauses: Sequence[Pause], checkpoint: Path, settings: Settings, version: str, seed: int) -> list[Sample]:
    """Return the samples of GRPO's recipe: a group at every 8th pause, scored without a developer. As many samples as pauses."""
    group_settings = settings.model_copy(update={"reward": settings.reward.model_copy(update={"estimator": "group"})})
    places = [pause.position for pause in pauses[::GROUP_SIZE]]
    result = groups.sample_groups(
        Generator(checkpoint, settings.model), ReferenceJudge(), places, GROUP_SIZE, group_settings, seed
    )
    return [sample.model_copy(update={"policy_version": version}) for sample in result.samples]


def rlinf_training(settings: Train) -> Train:
    """Return the settings of plain clipped PPO of all weights; learning rate and number of epochs stay tabloop's."""
    overrides = {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "logit_scale_rate": 0.0,
        "context_weight": 0.0,
        "frozen_layers": 0,
        "max_kl": 0.0,
    }
    return settings.model_copy(update=overrides)


def recipe_samples(
    plan: Plan, pauses: Sequence[Pause], checkpoint: Path, settings: Settings, version: str, seed: int
) -> list[Sample]:
    """Return the samples of the plan's recipe at these pauses."""
    if plan.recipe == "group":
        return group_samples(pauses, checkpoint, settings, version, seed)
    completions = complete(checkpoint, pauses, serving_temperature(plan.recipe, settings), seed, settings)
    if plan.recipe == "rlinf":
        return rlinf_samples(pauses, completions, checkpoint, settings, version)
    return tabloop_samples(pauses, completions, settings, version)


def train_recipe(plan: Plan, settings: Settings) -> Path:
    """Alternate interactions and updates; return the last checkpoint."""
    schedule = Schedule(plan.users, plan.seed, code_from(), Quirks(), "live")
    checkpoint = configuration.path(settings.model.base)
    for update in range(plan.updates):
        first, version = update * plan.interactions, str(update + 1)
        pauses = [schedule.first_pause(number) for number in range(first, first + plan.interactions)]
        samples = recipe_samples(plan, pauses, checkpoint, settings, version, plan.seed * 1000 + update)
        training = rlinf_training(settings.train) if plan.recipe == "rlinf" else settings.train
        folder = plan.folder / f"{plan.recipe}-{plan.seed}-{update}"
        folder.mkdir(parents=True)
        (folder / "samples.parquet").write_bytes(to_parquet(samples))
        job = write_job(folder, checkpoint, folder / "samples.parquet", version, training)
        follow(command(job, training.processes), folder / "trainer.log", training.environment, lambda line: None)
        checkpoint = folder / CHECKPOINT_NAME
    return checkpoint


def measure_gain(plan: Plan, settings: Settings) -> dict[str, Gain]:
    """Train a recipe; return its gain at its own temperature and, for other recipes than RLinf's, at RLinf's."""
    trained, base = train_recipe(plan, settings), configuration.path(settings.model.base)
    schedule = Schedule(plan.users, plan.seed, code_from(), Quirks(), "paired")
    pauses = [schedule.first_pause(number) for number in range(plan.places)]

    def expected_outcomes(checkpoint: Path, temperature: float) -> list[ExpectedOutcome]:
        completions = complete(checkpoint, pauses, temperature, plan.seed, settings)
        return [pause.judge(completion.text)[0] for pause, completion in zip(pauses, completions, strict=True)]

    users = tuple(pause.developer.name for pause in pauses)
    gains: dict[str, Gain] = {}
    for name, temperature in (("", serving_temperature(plan.recipe, settings)), (" when served at 0.1", RLINF_TEMPERATURE)):
        if plan.recipe != "rlinf" or not name:
            before, after = (expected_outcomes(checkpoint, temperature) for checkpoint in (base, trained))
            gains[plan.recipe + name] = Gain(
                users,
                (np.array([o.accepted for o in before]), np.array([o.accepted for o in after])),
                (np.array([o.accepted_characters for o in before]), np.array([o.accepted_characters for o in after])),
            )
    return gains


def difference(gains: Sequence[Gain], measure: Literal["accepted", "characters"]) -> tuple[float, float]:
    """Return the gain per request over the users of all seeds, and half the width of its confidence interval."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for seed, gain in enumerate(gains):
        base, trained = getattr(gain, measure)
        for user, change in zip(gain.users, trained - base, strict=True):
            sums[seed, user][0] += change
            sums[seed, user][1] += 1
    changes, places = np.array(list(sums.values())).T
    estimate, influence = ratio(changes, places)
    return estimate, margin(influence)


def figures(gains: dict[str, list[Gain]], seeds: Sequence[int]) -> list[Figure]:
    """Return the figures: the gain of each recipe for each seed and over all seeds, and the target."""
    rows: list[Figure] = []
    for name, seed_gains in gains.items():
        for seed, seed_gain in zip(seeds, seed_gains, strict=True):
            rows.append(figure(f"{name}: gain, seed {seed}", 100 * difference([seed_gain], "accepted")[0], "points"))
            rows.append(figure(f"{name}: characters, seed {seed}", difference([seed_gain], "characters")[0], "a request"))
        estimate, half_width = difference(seed_gains, "accepted")
        rows += [
            figure(f"{name}: acceptance of the base", 100 * float(np.mean([g.accepted[0].mean() for g in seed_gains])), "%"),
            figure(f"{name}: gain", 100 * estimate, "points"),
            figure(f"{name}: half of its interval", 100 * half_width, "points"),
        ]
        estimate, half_width = difference(seed_gains, "characters")
        rows += [
            figure(
                f"{name}: accepted characters of the base",
                float(np.mean([g.characters[0].mean() for g in seed_gains])),
                "a request",
            ),
            figure(f"{name}: accepted characters gained", estimate, "a request"),
            figure(f"{name}: half of their interval", half_width, "a request"),
        ]
    if not {"tabloop", "rlinf"} <= gains.keys():
        return rows
    tabloop_gain, rlinf_gain = (100 * difference(gains[name], "accepted")[0] for name in ("tabloop", "rlinf"))
    target = REQUIRED_GAIN_RATIO * max(rlinf_gain, 0.0)
    # If RLinf's recipe loses, twice its negative gain is no target: any gain of tabloop's passes.
    return [
        *rows,
        Figure(
            "tabloop's gain less twice rlinf's, if that is one",
            round(tabloop_gain - target, 4),
            "points",
            0.0,
            0 < tabloop_gain >= target,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the figures. Exit code 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_recipes", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--recipes", choices=RECIPES, nargs="+", default=RECIPES, help="(default: all)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of developers, places and sampling (default 0 1 2)")
    add("--users", type=int, default=240, help="developers (default %(default)s)")
    add("--interactions", type=int, default=3600, help="completions between updates (default %(default)s)")
    add("--updates", type=int, default=2, help="updates (default %(default)s)")
    add("--places", type=int, default=3000, help="places at which models are compared (default %(default)s)")
    add("--jobs", type=int, default=2, help="runs of a recipe and seed at a time (default %(default)s)")
    options = parser.parse_args(arguments)
    settings = configuration.load()
    with TemporaryDirectory(prefix="tabloop-bench-") as folder:
        plans = [
            Plan(recipe, seed, options.users, options.interactions, options.updates, options.places, Path(folder))
            for seed in options.seeds
            for recipe in options.recipes
        ]
        # Spawned, because forking a process with torch threads is unsafe.
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(measure_gain, plans, [settings] * len(plans)))
    gains: dict[str, list[Gain]] = defaultdict(list)
    for result in results:
        for name, value in result.items():
            gains[name].append(value)
    return 0 if write("recipes", figures(gains, options.seeds), Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
