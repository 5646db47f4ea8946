"""Three ways to learn at the same places: python -m tasks.bench_recipes

tabloop's recipe: signed rewards, the served tokens with the log-probabilities that they were sampled with, temperature as served.
RLinf's, as its online example does it (infra/docs/loop.md, "How recipes are compared"): reward 1 or 0 as the advantage, the
shown text tokenised again without its end token, "old" log-probabilities computed anew with the weights at hand, temperature 0.1.
GRPO's: groups of 8 completions at every 8th of the places, rewarded by their likeness to what was really written there
(tasks/groups.py), so that no developer is asked; all else as ours.

All start from the base model, and for each seed the same simulated developers look at the same places. What is gained is the
difference of acceptance to the base in the team's later code, the same for all, each at the temperature that it serves at. No
server has a part in it. The figures are written to var/bench/recipes.json.
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
from evals.developers import ExpectedOutcome, Pause, Schedule, code_from
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
GROUP = 8
RLINF_TEMPERATURE = 0.1
RLINF_REWARD = Reward(accepted=1.0, rejected=0.0, nothing=0.0, baseline="none", normalise=False)
TIMES_THE_GAIN = 2.0


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
    """The trained model and the base at the same places, with each place's user."""

    users: tuple[str, ...]
    accepted: tuple[np.ndarray, np.ndarray]
    """Expected accepts of each place, [places], of the base and of the trained model."""
    characters: tuple[np.ndarray, np.ndarray]
    """Expected accepted characters, likewise."""


def temperature(recipe: Recipe, settings: Settings) -> float:
    """Return the temperature at which the recipe serves."""
    return RLINF_TEMPERATURE if recipe == "rlinf" else settings.serving.sampling.temperature


def complete(checkpoint: Path, looks: Sequence[Pause], degree: float, seed: int, settings: Settings) -> list[SampledCompletion]:
    """Return a completion for each look."""
    generator = Generator(checkpoint, settings.model)
    return generator.sample([(k.prefix, k.suffix) for k in looks], settings.serving.sampling.max_tokens, degree, seed)


def ours(looks: Sequence[Pause], drawn: Sequence[SampledCompletion], settings: Settings, version: str) -> list[Sample]:
    """Return samples as a cycle makes them."""
    samples = [
        row(number, version, look, draw, settings.serving.sampling.temperature)
        for number, (look, draw) in enumerate(zip(looks, drawn, strict=True))
    ]
    return worth(samples, settings.reward)


def worth(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """Return the samples with reward and advantage."""
    columns = ("outcome", "shown_characters", "accepted_characters")
    frame = pl.DataFrame({name: [getattr(sample, name) for sample in samples] for name in columns})
    lengths = [len(sample.token_ids) for sample in samples]
    frame = frame.with_columns(tokens=pl.Series(lengths), prompt=pl.int_range(len(samples)), language=pl.lit(UNKNOWN_LANGUAGE))
    rows = with_advantages(frame, settings).select("reward", "advantage").iter_rows(named=True)
    return [sample.model_copy(update=row) for sample, row in zip(samples, rows, strict=True)]


def row(number: int, version: str, look: Pause, draw: SampledCompletion, degree: float) -> Sample:
    """Return a labelled completion as a sample."""
    outcome, judgement = look.judge(draw.text)
    accepted = judgement is not None and judgement.accepted
    return Sample(
        completion_id=str(number),
        user=look.developer.name,
        policy_version=version,
        prompt_token_ids=draw.prompt,
        token_ids=draw.tokens,
        logprobs=tuple(min(value, 0.0) for value in draw.logprobs),
        temperature=degree,
        outcome="nothing" if judgement is None else "accepted" if accepted else "rejected",
        shown_characters=len(outcome.shown),
        accepted_characters=len(outcome.shown) * accepted,
    )


def rlinfs(
    looks: Sequence[Pause], drawn: Sequence[SampledCompletion], checkpoint: Path, settings: Settings, version: str
) -> list[Sample]:
    """Return samples as RLinf's online example makes them: the shown text, tokenised again and scored by the current weights."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = [look.judge(draw.text)[0].shown for look, draw in zip(looks, drawn, strict=True)]
    tokens = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    shown = [number for number, ids in enumerate(tokens) if ids]  # nothing shown, nothing sent
    scores = Generator(checkpoint, settings.model).score([(drawn[number].prompt, tokens[number]) for number in shown])
    samples = [
        row(number, version, looks[number], replace(drawn[number], tokens=tuple(tokens[number]), logprobs=tuple(logprobs)), 1.0)
        for number, logprobs in zip(shown, scores, strict=True)
    ]
    return worth(samples, RLINF_REWARD)


def grouped(looks: Sequence[Pause], checkpoint: Path, settings: Settings, version: str, seed: int) -> list[Sample]:
    """Return GRPO's samples, as many as there are looks: several at each of fewer places, scored without a developer."""
    by_group = settings.model_copy(update={"reward": settings.reward.model_copy(update={"estimator": "group"})})
    places = [look.position for look in looks[::GROUP]]
    grouped_samples = groups.sample_groups(Generator(checkpoint, settings.model), ReferenceJudge(), places, GROUP, by_group, seed)
    return [sample.model_copy(update={"policy_version": version}) for sample in grouped_samples.samples]


def rlinf_training(settings: Train) -> Train:
    """PPO with its clip, of all weights, and none of our additions; one pass and a learning rate for this model, as ours."""
    plain = {"clip_low": 0.2, "clip_high": 0.2, "logit_scale_rate": 0.0, "context_weight": 0.0, "frozen_layers": 0, "max_kl": 0.0}
    return settings.model_copy(update=plain)


def taught(plan: Plan, looks: Sequence[Pause], checkpoint: Path, settings: Settings, version: str, seed: int) -> list[Sample]:
    """Return the samples of a recipe after these looks."""
    if plan.recipe == "group":
        return grouped(looks, checkpoint, settings, version, seed)
    drawn = complete(checkpoint, looks, temperature(plan.recipe, settings), seed, settings)
    if plan.recipe == "rlinf":
        return rlinfs(looks, drawn, checkpoint, settings, version)
    return ours(looks, drawn, settings, version)


def learn(plan: Plan, settings: Settings) -> Path:
    """Interact and update; return the last checkpoint."""
    schedule = Schedule(plan.users, plan.seed, code_from())
    checkpoint = configuration.path(settings.model.base)
    for update in range(plan.updates):
        first, version = update * plan.interactions, str(update + 1)
        looks = [schedule.first_pause(number) for number in range(first, first + plan.interactions)]
        samples = taught(plan, looks, checkpoint, settings, version, plan.seed * 1000 + update)
        training = rlinf_training(settings.train) if plan.recipe == "rlinf" else settings.train
        folder = plan.folder / f"{plan.recipe}-{plan.seed}-{update}"
        folder.mkdir(parents=True)
        (folder / "samples.parquet").write_bytes(to_parquet(samples))
        job = write_job(folder, checkpoint, folder / "samples.parquet", version, training)
        follow(command(job, training.processes), folder / "trainer.log", training.environment, lambda line: None)
        checkpoint = folder / CHECKPOINT_NAME
    return checkpoint


def gain(plan: Plan, settings: Settings) -> dict[str, Gain]:
    """Return the gain of a recipe at its own temperature, and at RLinf's."""
    learnt, base = learn(plan, settings), configuration.path(settings.model.base)
    schedule = Schedule(plan.users, plan.seed, code_from())
    looks = [schedule.first_pause(number, "later") for number in range(plan.places)]

    def judged(checkpoint: Path, degree: float) -> list[ExpectedOutcome]:
        drawn = complete(checkpoint, looks, degree, plan.seed, settings)
        return [look.judge(draw.text)[0] for look, draw in zip(looks, drawn, strict=True)]

    users = tuple(look.developer.name for look in looks)
    gains: dict[str, Gain] = {}
    for name, degree in (("", temperature(plan.recipe, settings)), (" when served at 0.1", RLINF_TEMPERATURE)):
        if plan.recipe != "rlinf" or not name:
            before, after = (judged(checkpoint, degree) for checkpoint in (base, learnt))
            gains[plan.recipe + name] = Gain(
                users,
                (np.array([o.accepted for o in before]), np.array([o.accepted for o in after])),
                (np.array([o.accepted_characters for o in before]), np.array([o.accepted_characters for o in after])),
            )
    return gains


def difference(gains: Sequence[Gain], measure: Literal["accepted", "characters"]) -> tuple[float, float]:
    """Return the gain per request over all seeds' users, and half of its interval."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for seed, measured in enumerate(gains):
        base, learnt = getattr(measured, measure)
        for user, change in zip(measured.users, learnt - base, strict=True):
            sums[seed, user][0] += change
            sums[seed, user][1] += 1
    changes, places = np.array(list(sums.values())).T
    estimate, influence = ratio(changes, places)
    return estimate, margin(influence)


def figures(gains: dict[str, list[Gain]], seeds: Sequence[int]) -> list[Figure]:
    """Return the gains by recipe and seed, and over all seeds."""
    rows: list[Figure] = []
    for name, of_seeds in gains.items():
        for seed, of_seed in zip(seeds, of_seeds, strict=True):
            rows.append(figure(f"{name}: gain, seed {seed}", 100 * difference([of_seed], "accepted")[0], "points"))
            rows.append(figure(f"{name}: characters, seed {seed}", difference([of_seed], "characters")[0], "a request"))
        estimate, width = difference(of_seeds, "accepted")
        rows += [
            figure(f"{name}: acceptance of the base", 100 * float(np.mean([g.accepted[0].mean() for g in of_seeds])), "%"),
            figure(f"{name}: gain", 100 * estimate, "points"),
            figure(f"{name}: half of its interval", 100 * width, "points"),
        ]
        estimate, width = difference(of_seeds, "characters")
        rows += [
            figure(
                f"{name}: accepted characters of the base",
                float(np.mean([g.characters[0].mean() for g in of_seeds])),
                "a request",
            ),
            figure(f"{name}: accepted characters gained", estimate, "a request"),
            figure(f"{name}: half of their interval", width, "a request"),
        ]
    if not {"tabloop", "rlinf"} <= gains.keys():
        return rows
    ahead, behind = (100 * difference(gains[name], "accepted")[0] for name in ("tabloop", "rlinf"))
    target = TIMES_THE_GAIN * max(behind, 0.0)
    # Where RLinf's loses, half of its loss would be no gain.
    return [
        *rows,
        Figure("tabloop's gain less twice rlinf's, if that is one", round(ahead - target, 4), "points", 0.0, 0 < ahead >= target),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the figures. Exit code 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_recipes", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--recipes", choices=RECIPES, nargs="+", default=RECIPES, help="(default: all)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of developers, places and draws (default 0 1 2)")
    add("--users", type=int, default=240, help="developers (default %(default)s)")
    add("--interactions", type=int, default=3600, help="completions between updates (default %(default)s)")
    add("--updates", type=int, default=2, help="updates (default %(default)s)")
    add("--places", type=int, default=3000, help="places of the comparison (default %(default)s)")
    add("--jobs", type=int, default=2, help="recipes and seeds at a time (default %(default)s)")
    options = parser.parse_args(arguments)
    settings = configuration.load()
    with TemporaryDirectory(prefix="tabloop-bench-") as folder:
        plans = [
            Plan(recipe, seed, options.users, options.interactions, options.updates, options.places, Path(folder))
            for seed in options.seeds
            for recipe in options.recipes
        ]
        # The trainer's processes come and go by themselves; spawned, so that torch's threads are not forked.
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(gain, plans, [settings] * len(plans)))
    gains: dict[str, list[Gain]] = defaultdict(list)
    for result in results:
        for name, value in result.items():
            gains[name].append(value)
    return 0 if write("recipes", figures(gains, options.seeds), Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
