"""Compare what recipes learn from the same simulated developers: python -m tasks.bench_recipes

Each recipe starts from the base model and makes samples of the same pauses. After each update the trained model, at the
temperature that people are served at, meets the base at its best temperature, at the same places of three grounds
(evals/grounds.py). No server takes part. A run of a recipe and seed is kept in var/bench/recipes, where the next call finds it;
the figures are written to var/bench/recipes.json. `RECIPES` describes the recipes, infra/docs/loop.md how they are compared.
"""

import argparse
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from rich.console import Console
from tokenizers import Tokenizer

from evals.bench.figures import FOLDER, write
from evals.bench.gains import Gain, difference, figures, gain_of
from evals.developers import ExpectedOutcome, Pause, Schedule, SettledTruth, code_from
from evals.generation import Generator, SampledCompletion
from evals.grounds import GROUNDS
from evals.judge import ReferenceJudge
from evals.metrics import matching_prefix
from infra import settings as configuration
from infra.fim import Renderer
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Reward
from infra.store import to_parquet
from tasks import groups
from tasks.labels import standing
from tasks.labels.samples import SettledTokens
from tasks.rewards.reward import UNKNOWN_LANGUAGE, with_advantages
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.pretraining import tuning
from tasks.trainer.run import command, follow, write_job

GROUP_SIZE = 8
RLINF_TEMPERATURE = 0.1
RLINF_REWARD = Reward(accepted=1.0, rejected=0.0, nothing=0.0, baseline="none", normalise=False)
TAUGHT = ("typed", "accepted", "rewritten")
"""What became of places whose text is a label; a paste and an unfinished line are none."""


@dataclass(frozen=True)
class Interactions:
    """What the developers of one update do, and the policy that they meet."""

    pauses: Sequence[Pause]
    checkpoint: Path
    settings: Settings
    version: str
    seed: int

    @property
    def renderer(self) -> Renderer:
        """The policy's prompts."""
        model, tokenizer = self.settings.model, Tokenizer.from_file(str(self.checkpoint / "tokenizer.json"))
        return Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)

    def complete(self, temperature: float) -> list[SampledCompletion]:
        """Sample a completion at each pause."""
        contexts = [(pause.prefix, pause.suffix) for pause in self.pauses]
        generator = Generator(self.checkpoint, self.settings.model)
        return generator.sample(contexts, self.settings.serving.sampling.max_tokens, temperature, self.seed)


def settled_samples(given: Interactions, every: int = 1) -> list[Sample]:
    """Return what was written at each pause, or at every third, and around it, as a cycle makes it; nobody is shown anything."""
    renderer, tokens, pauses = given.renderer, settled_tokens(given), given.pauses[::every]
    samples = [
        empty_sample(number, given.version, pause, renderer.render(pause.prefix, pause.suffix), 1.0).model_copy(
            update={"settled_token_ids": tuple(tokens(pause))}
        )
        for number, pause in enumerate(pauses)
    ]
    return [*(sample for sample in samples if sample.settled_token_ids), *standing_samples(given, pauses)]


def standing_samples(given: Interactions, pauses: Sequence[Pause]) -> Iterator[Sample]:
    """Yield the standing lines of the pauses, as a cycle makes them."""
    settings, renderer = given.settings, given.renderer
    written = SettledTokens(renderer, settings.serving.sampling.max_tokens)
    seen: set[bytes] = set()
    for number, pause in enumerate(pauses):
        cursors = standing.pick(pause.prefix, settings.collect.standing_lines, seen)
        for line, (before, rest, after) in enumerate(standing.places(pause.prefix, pause.suffix, cursors), 1):
            row = empty_sample(number, given.version, pause, renderer.render(before, after), 1.0)
            ids = tuple(written.ids(rest, True))
            yield row.model_copy(update={"completion_id": f"{number}/{line}", "settled_token_ids": ids, "outcome": "standing"})


def control_samples(given: Interactions) -> list[Sample]:
    """Return as many places of the base's own training sources, in which no developer took part and which it was not tuned to."""
    sources = tuning.sources(0)
    pauses = tuning.pauses(sources.kept_back, len(given.pauses), given.seed)
    return tuning.places(pauses, given.renderer, given.settings.serving.sampling.max_tokens)


def shown_samples(given: Interactions, explored: bool, settled: bool) -> list[Sample]:
    """Return the completions that developers were shown and judged, with rewards, with or without what was written."""
    sampling = given.settings.serving.sampling
    temperature = sampling.exploring_temperature if explored else sampling.temperature
    completions = given.complete(temperature)
    judged = zip(given.pauses, completions, strict=True)
    samples = [labelled_sample(number, given.version, *pair, temperature) for number, pair in enumerate(judged)]
    if settled:
        tokens = settled_tokens(given)
        labels = [
            {"settled_token_ids": tuple(tokens(pause)), "kept_characters": kept(pause, completion.text)}
            for pause, completion in zip(given.pauses, completions, strict=True)
        ]
        samples = [sample.model_copy(update=label) for sample, label in zip(samples, labels, strict=True)]
    rewarded = with_rewards(samples, given.settings.reward)
    return [*rewarded, *standing_samples(given, given.pauses)] if settled else rewarded


def rlinf_samples(given: Interactions) -> list[Sample]:
    """Return samples as RLinf's online example makes them: the shown text, tokenised again and scored by the current weights."""
    completions = given.complete(RLINF_TEMPERATURE)
    tokenizer = Tokenizer.from_file(str(given.checkpoint / "tokenizer.json"))
    texts = [pause.judge(completion.text)[0].shown for pause, completion in zip(given.pauses, completions, strict=True)]
    tokens = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    nonempty = [number for number, ids in enumerate(tokens) if ids]  # a client sends no feedback on empty text
    generator = Generator(given.checkpoint, given.settings.model)
    scores = generator.score([(completions[number].prompt, tokens[number]) for number in nonempty])
    rescored = [
        replace(completions[number], tokens=tuple(tokens[number]), logprobs=tuple(logprobs))
        for number, logprobs in zip(nonempty, scores, strict=True)
    ]
    samples = [
        labelled_sample(number, given.version, given.pauses[number], completion, 1.0)
        for number, completion in zip(nonempty, rescored, strict=True)
    ]
    return with_rewards(samples, RLINF_REWARD)


def group_samples(given: Interactions) -> list[Sample]:
    """Return GRPO's samples: a group at every 8th pause, scored without a developer. As many samples as pauses."""
    reward = given.settings.reward.model_copy(update={"estimator": "group"})
    result = groups.sample_groups(
        Generator(given.checkpoint, given.settings.model),
        ReferenceJudge(),
        [pause.position for pause in given.pauses[::GROUP_SIZE]],
        GROUP_SIZE,
        given.settings.model_copy(update={"reward": reward}),
        given.seed,
    )
    return [sample.model_copy(update={"policy_version": given.version}) for sample in result.samples]


@dataclass(frozen=True)
class Recipe:
    """How a recipe makes samples of interactions, and where its update differs from the settings."""

    meaning: str
    samples: Callable[[Interactions], list[Sample]]
    training: Mapping[str, Any]


SURROGATE: dict[str, Any] = {"surrogate_weight": 1.0, "learning_rate": 4e-4, "final_rate": 1.0}
SERVED_SURROGATE = SURROGATE | {"learning_rate": 1e-4}
"""At a low temperature the same rate moves the policy further."""
PLAIN_PPO = SURROGATE | {"clip_low": 0.2, "clip_high": 0.2, "frozen_layers": 0}
RECIPES: Mapping[str, Recipe] = {
    "settled": Recipe("the settled text alone, as shipped", settled_samples, {"surrogate_weight": 0.0}),
    "settled_third": Recipe("the settled text of every third place", lambda g: settled_samples(g, 3), {"surrogate_weight": 0.0}),
    "control": Recipe("as many places without developers", control_samples, {"surrogate_weight": 0.0}),
    "ppo": Recipe("accepts and rejections, sampled as served", lambda g: shown_samples(g, False, False), SERVED_SURROGATE),
    "ppo_explored": Recipe("the same, explored at a high temperature", lambda g: shown_samples(g, True, False), SURROGATE),
    "both": Recipe(
        "settled text and accepts, sampled as served", lambda g: shown_samples(g, False, True), {"surrogate_weight": 0.1}
    ),
    "both_explored": Recipe(
        "settled text and accepts, explored at a high temperature",
        lambda g: shown_samples(g, True, True),
        {"surrogate_weight": 0.1},
    ),
    "rlinf": Recipe("RLinf's online example", rlinf_samples, PLAIN_PPO),
    "group": Recipe("GRPO with a judge instead of developers", group_samples, SURROGATE),
}


def settled_tokens(given: Interactions) -> Callable[[Pause], list[int]]:
    """Return the function that gives a pause's settled text as tokens; none where the text is no label."""
    settings = given.settings
    tokens = SettledTokens(given.renderer, settings.serving.sampling.max_tokens, settings.collect.hindsight.lines)

    def ids(pause: Pause) -> list[int]:
        truth = label_of(pause)
        return tokens.ids(truth.text or None, truth.whole) if truth else []

    return ids


def label_of(pause: Pause) -> SettledTruth | None:
    """Return what settled at a pause; None where that is no label."""
    return pause.settled if pause.settled and pause.settled.kind in TAUGHT else None


def kept(pause: Pause, generated: str) -> int | None:
    """Return how many characters of what was shown stand in the settled text; None where that is no label."""
    truth = label_of(pause)
    return matching_prefix(pause.judge(generated)[0].shown, truth.text or "") if truth else None


def empty_sample(number: int, version: str, pause: Pause, prompt: Sequence[int], temperature: float) -> Sample:
    """Return a pause as a sample of which nothing is known but its prompt."""
    return Sample(
        completion_id=str(number),
        user=pause.developer.name,
        policy_version=version,
        prompt_token_ids=tuple(prompt),
        token_ids=(),
        logprobs=(),
        temperature=temperature,
        outcome="unjudged",
        shown_characters=0,
        accepted_characters=0,
    )


def labelled_sample(number: int, version: str, pause: Pause, completion: SampledCompletion, temperature: float) -> Sample:
    """Return a labelled completion as a sample."""
    outcome, judgement = pause.judge(completion.text)
    accepted = judgement is not None and judgement.accepted
    return empty_sample(number, version, pause, completion.prompt, temperature).model_copy(
        update={
            "token_ids": completion.tokens,
            "logprobs": tuple(min(value, 0.0) for value in completion.logprobs),
            "outcome": "nothing" if judgement is None else "accepted" if accepted else "rejected",
            "shown_characters": len(outcome.shown),
            "accepted_characters": len(outcome.shown) * accepted,
        }
    )


def with_rewards(samples: Sequence[Sample], settings: Reward) -> list[Sample]:
    """Return the samples with reward and advantage."""
    columns = ("outcome", "shown_characters", "accepted_characters", "kept_characters")
    values = {name: [getattr(sample, name) for sample in samples] for name in columns}
    frame = pl.DataFrame(values, schema_overrides={"kept_characters": pl.Int64})
    lengths = [len(sample.token_ids) for sample in samples]
    frame = frame.with_columns(tokens=pl.Series(lengths), prompt=pl.int_range(len(samples)), language=pl.lit(UNKNOWN_LANGUAGE))
    rewards = with_advantages(frame, settings).select("reward", "advantage").iter_rows(named=True)
    return [sample.model_copy(update=values) for sample, values in zip(samples, rewards, strict=True)]


@dataclass(frozen=True)
class Plan:
    """A run of one recipe with one seed."""

    recipe: str
    seed: int
    users: int
    interactions: int
    """Pauses of developers between two updates."""
    updates: int
    places: int
    """Places of each ground at which the models are compared; a fourth of them on `seen`."""

    def identity(self, settings: Settings) -> str:
        """Return the name under which the run is kept: another setting or another base model makes another run."""
        weights = (configuration.path(settings.model.base) / "model.safetensors").read_bytes()
        parts = (repr(self), repr(RECIPES[self.recipe].training), settings.model_dump_json(include=READ_SETTINGS))
        digest = hashlib.sha256(weights + "\0".join(parts).encode()).hexdigest()[:12]
        return f"{self.recipe}-{self.seed}-{digest}"


READ_SETTINGS = {"model", "train", "reward", "collect", "serving"}


def best_temperature(settings: Settings) -> float:
    """Return the base's best temperature, from its generation_config.json."""
    file = configuration.path(settings.model.base) / "generation_config.json"
    return float(json.loads(file.read_text())["temperature"])


def expected(
    checkpoint: Path, pauses: Sequence[Pause], temperature: float, seed: int, settings: Settings
) -> list[ExpectedOutcome]:
    """Return what developers do with a checkpoint's completions."""
    completions = Interactions(pauses, checkpoint, settings, "", seed).complete(temperature)
    return [pause.judge(completion.text)[0] for pause, completion in zip(pauses, completions, strict=True)]


def run_plan(plan: Plan, settings: Settings) -> list[Gain]:
    """Alternate interactions and updates, and compare with the base after each update."""
    schedule, base = Schedule(plan.users, plan.seed, code_from()), configuration.path(settings.model.base)
    places = {
        ground: [schedule.first_pause(number, ground) for number in range(plan.places // (4 if ground == "seen" else 1))]
        for ground in GROUNDS
    }
    best, served = best_temperature(settings), settings.serving.sampling.temperature
    before = {ground: expected(base, places[ground], best, plan.seed, settings) for ground in GROUNDS}
    gains, checkpoint = [], base
    with TemporaryDirectory(prefix="tabloop-recipe-") as work:
        for update in range(plan.updates):
            checkpoint = train(plan, update, schedule, checkpoint, settings, Path(work) / str(update))
            for ground in GROUNDS:
                after = expected(checkpoint, places[ground], served, plan.seed, settings)
                gains.append(gain_of(ground, plan.interactions * (update + 1), places[ground], before[ground], after))
    return gains


def train(plan: Plan, update: int, schedule: Schedule, checkpoint: Path, settings: Settings, folder: Path) -> Path:
    """Train a checkpoint on the samples of an update's interactions; return the trained one."""
    first, recipe, version = update * plan.interactions, RECIPES[plan.recipe], str(update + 1)
    pauses = [schedule.first_pause(number) for number in range(first, first + plan.interactions)]
    samples = recipe.samples(Interactions(pauses, checkpoint, settings, version, plan.seed * 1000 + update))
    folder.mkdir(parents=True)
    (folder / "samples.parquet").write_bytes(to_parquet(samples))
    training = settings.train.model_copy(update=recipe.training)
    job = write_job(folder, checkpoint, folder / "samples.parquet", version, training)
    follow(command(job, training.processes), folder / "trainer.log", training.environment, lambda line: None)
    return folder / CHECKPOINT_NAME


def kept_run(plan: Plan, settings: Settings, folder: Path = FOLDER / "recipes") -> list[Gain]:
    """Return the gains of a run: those that an earlier call kept, or of a new run, which is then kept."""
    file = folder / f"{plan.identity(settings)}.json"
    if not file.exists():
        gains = run_plan(plan, settings)
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps([asdict(gain) for gain in gains]))
        part.rename(file)
    return [Gain(**values) for values in json.loads(file.read_text())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipes and write the figures. Exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_recipes", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--recipes", choices=RECIPES, nargs="+", default=list(RECIPES), help="(default: all)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of developers, places, sampling (default 0 1 2 3 4)")
    add("--users", type=int, default=240, help="developers (default %(default)s)")
    add("--interactions", type=int, default=7200, help="pauses between updates (default %(default)s)")
    add("--updates", type=int, default=1, help="updates; the figures after each are a curve (default %(default)s)")
    add("--places", type=int, default=3000, help="places of a ground at which models are compared (default %(default)s)")
    add("--jobs", type=int, default=1, help="runs at a time; each trains with train.processes (default %(default)s)")
    options = parser.parse_args(arguments)
    settings, console = configuration.load(), Console()
    sizes = options.users, options.interactions, options.updates, options.places
    plans = [Plan(recipe, seed, *sizes) for seed in options.seeds for recipe in options.recipes]
    runs: dict[str, list[list[Gain]]] = defaultdict(list)
    # Spawned, because forking a process with torch threads is unsafe.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done, (plan, gains) in enumerate(zip(plans, pool.map(kept_run, plans, [settings] * len(plans)), strict=True), 1):
            runs[plan.recipe].append(gains)
            estimate, width = difference([gain for gain in gains if gain.ground == "later"][-1:], "accepted")
            console.print(
                f"[{done} of {len(plans)}] {plan.recipe}, seed {plan.seed}: {100 * estimate:+.2f} +- {100 * width:.2f} points"
            )
    return 0 if write("recipes", figures(runs), console) else 1


if __name__ == "__main__":
    sys.exit(main())
