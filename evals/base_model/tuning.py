"""Tunes the base model to the positions where editors ask, and chooses its temperature: `tabloop base tune`.

The second half of `tabloop base`. It reads the base model's training sources only, writes the tuned weights in place of the
model's, and writes the best temperature to generation_config.json.

Pretraining cuts a span anywhere in a finished file. Editors ask where somebody is writing: at the end of a token, for the rest of
a line or a few lines, in a function whose rest is not written yet. A model that is trained at such positions is right more often
and knows better where to end. None of this comes from a team, so it belongs to the base that a team's gain is measured against.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from evals.base_model.corpus import truncate
from evals.base_model.files import standard_library, training_files
from evals.developers import Pause, Schedule
from evals.progress import Progress
from infra.model.fim import END, Renderer
from infra.records import Sample
from infra.settings import Settings
from infra.settings.training import Recipe
from infra.storage.store import to_parquet
from tasks.evaluation.heldout import site_packages
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Code, Source, read_sources
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import command, follow, write_job

GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
EVERY = 5
"""Of the pauses of simulated developers every fifth is a place, since those of one session lie near one another."""
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.8)
USERS = 240


@dataclass(frozen=True)
class Sources:
    """The base model's training sources, in two parts."""

    tuned: Code
    """Files with the places that it is tuned to."""
    kept_back: Code
    """One file in five, for the choice of the temperature."""


@dataclass(frozen=True)
class Score:
    """What simulated developers do with a model's completions at one temperature, per request."""

    temperature: float
    accepted: float
    """Expected accepts."""
    characters: float
    """Expected accepted characters."""


def sources(seed: int) -> Sources:
    """Return the training sources in two parts, by a hash of their names."""
    files = read_sources(truncate(training_files(), seed), [standard_library(), site_packages()])
    kept = [file for file in files if _is_kept_back(file)]
    return Sources(Code([file for file in files if not _is_kept_back(file)]), Code(kept))


def _is_kept_back(source: Source) -> bool:
    return hashlib.sha256(source.name.encode()).digest()[0] % 5 == 0


def places(looks: Sequence[Pause], renderer: Renderer, max_tokens: int) -> list[Sample]:
    """Return pauses as samples: the prompt as an editor sends it, and what is about to be written as the settled text."""
    return [
        Sample(
            completion_id=f"place-{number}",
            user="",
            policy_version="0",
            prompt_token_ids=tuple(renderer.render(look.prefix, look.suffix)),
            token_ids=(),
            logprobs=(),
            temperature=1.0,
            outcome="unjudged",
            shown_characters=0,
            accepted_characters=0,
            settled_token_ids=target_tokens(renderer, look.position.truth, max_tokens),
        )
        for number, look in enumerate(looks)
    ]


def target_tokens(renderer: Renderer, text: str, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens that a completion of this text has: with the end token, where it fits."""
    end = renderer.encoder.token_to_id(END)
    assert end is not None
    return (*renderer.encode(text), end)[:max_tokens]


def pauses(code: Code, count: int, seed: int) -> list[Pause]:
    """Return pauses of simulated developers who write these files."""
    schedule = Schedule(USERS, seed, code)
    return [schedule.first_pause(EVERY * number) for number in range(count)]


def score(generator: Generator, looks: Sequence[Pause], temperature: float, max_tokens: int, seed: int) -> Score:
    """Return what developers do with the model's completions at these pauses."""
    texts = generator.complete([(look.prefix, look.suffix) for look in looks], max_tokens, temperature, seed)
    outcomes = [look.answer(text)[0] for look, text in zip(looks, texts, strict=True)]
    return Score(
        temperature,
        float(np.mean([outcome.accepted for outcome in outcomes])),
        float(np.mean([outcome.accepted_characters for outcome in outcomes])),
    )


def best(scores: Sequence[Score]) -> Score:
    """Return the score with the most accepts; of equal ones, that with the higher temperature."""
    return max(scores, key=lambda score: (score.accepted, score.temperature))


@dataclass(frozen=True)
class Options:
    """Frozen options of the tuning."""

    model: Path
    """Checkpoint to tune, in place."""
    places: int
    """Positions to train on; 0: only choose the temperature."""
    learning_rate: float
    """Learning rate at the start."""
    exponent: float
    """train.settled_exponent; 0: the cross-entropy."""
    compared: int
    """Positions that each temperature is tried at."""
    seed: int
    """Of positions and draws."""


def update_settings(settings: Settings, learning_rate: float, exponent: float, seed: int) -> Recipe:
    """Return the options of the tuning: the written text alone, small steps, a decay to a tenth."""
    return settings.train.model_copy(
        update={
            "learning_rate": learning_rate,
            "final_rate": 0.1,
            "epochs": 1,
            "minibatch": 64,
            "settled_exponent": exponent,
            "frozen_layers": 2,
            "seed": seed,
        }
    )


def tune(settings: Settings, options: Options, parts: Sources, progress: Progress) -> None:
    """Train the checkpoint on places of the tuned files, and replace its weights."""
    model, max_tokens = settings.model, settings.serving.sampling.max_tokens
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    samples = places(pauses(parts.tuned, options.places, options.seed), renderer, max_tokens)
    with TemporaryDirectory(prefix="tabloop-tune-") as folder:
        work = Path(folder)
        (work / "samples.parquet").write_bytes(to_parquet(samples))
        options_of_update = update_settings(settings, options.learning_rate, options.exponent, options.seed)
        job = write_job(work, options.model.resolve(), work / "samples.parquet", "0", options_of_update)
        with progress.part("tune: steps", -(-len(samples) // options_of_update.minibatch)) as part:

            def take(line: str) -> None:
                progress.say(line)
                if line.startswith("step "):
                    part.advance()

            follow(command(job, settings.train.processes), work / "trainer.log", settings.train.environment, take)
        weights = {name: tensor.bfloat16() for name, tensor in load_file(work / CHECKPOINT_NAME / WEIGHTS).items()}
        save_file(weights, options.model / WEIGHTS, metadata={"format": "pt"})  # as pretraining leaves it


def run(settings: Settings, options: Options) -> None:
    """Tune the model and write its best temperature."""
    parts = sources(options.seed)
    with Progress(Console()) as progress:
        if options.places:
            tune(settings, options, parts, progress)
        looks = pauses(parts.kept_back, options.compared, options.seed)
        generator = Generator(options.model, settings.model)
        scores = []
        with progress.part("tune: temperatures", len(TEMPERATURES)) as part:
            for temperature in TEMPERATURES:
                scores.append(score(generator, looks, temperature, settings.serving.sampling.max_tokens, options.seed))
                part.advance()
                found = f"{scores[-1].accepted:.2%} accepted, {scores[-1].characters:.3f} characters"
                progress.say(f"temperature {temperature}: {found}")
    path = options.model / GENERATION
    chosen = {"do_sample": True, "temperature": best(scores).temperature}
    path.write_text(json.dumps(json.loads(path.read_text()) | chosen, indent=2))
