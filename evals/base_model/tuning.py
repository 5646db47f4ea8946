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

from evals.base_model import update
from evals.base_model.corpus import truncate
from evals.base_model.sources import standard_library, training_files
from evals.developers import Pause, Schedule
from evals.progress import Progress
from infra.model.fim import Renderer
from infra.records import Sample
from infra.settings import Settings
from tasks.evaluation.heldout import site_packages
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Code, Source, read_sources
from tasks.labels.samples import SettledTokens

GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
EVERY = 5
"""Of the pauses of simulated developers every fifth is a place, since those of one session lie near one another."""
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.8)
USERS = 240
TRAINING = {"final_rate": 0.1, "epochs": 1, "minibatch": 64, "interpolation": 1.0, "frozen_layers": 2}
"""Options of the update: small steps, a decay to a tenth."""


@dataclass(frozen=True)
class Score:
    """What simulated developers do with a model's completions at one temperature, per request."""

    temperature: float
    accepted: float  # expected accepts
    characters: float  # expected accepted characters


@dataclass(frozen=True)
class Options:
    """Frozen options of the tuning."""

    model: Path  # checkpoint to tune, in place
    places: int  # positions to train on; 0: only choose the temperature
    learning_rate: float  # at the start
    exponent: float  # train.settled_exponent; 0: the cross-entropy
    compared: int  # positions that each temperature is tried at
    seed: int  # of positions and draws


def sources(seed: int) -> tuple[Code, Code]:
    """Return the training sources that the base is tuned to, and one file in five for the choice of the temperature."""
    files = read_sources(truncate(training_files(), seed), [standard_library(), site_packages()])
    tuned = [file for file in files if not _is_kept_back(file)]
    return Code(tuned), Code([file for file in files if _is_kept_back(file)])


def _is_kept_back(source: Source) -> bool:
    return hashlib.sha256(source.name.encode()).digest()[0] % 5 == 0


def places(looks: Sequence[Pause], renderer: Renderer, max_tokens: int) -> list[Sample]:
    """Return pauses as samples: the prompt as an editor sends it, and what is about to be written as the settled text."""
    tokens = SettledTokens(renderer, max_tokens)
    return [
        update.sample(
            f"place-{number}",
            renderer.render(look.prefix, look.suffix),
            settled_token_ids=tuple(tokens.ids(look.position.truth, True)),
        )
        for number, look in enumerate(looks)
    ]


def pauses(code: Code, count: int, seed: int) -> list[Pause]:
    """Return pauses of simulated developers who write these files."""
    schedule = Schedule(USERS, seed, code)
    return [schedule.first_pause(EVERY * number) for number in range(count)]


def score(generator: Generator, looks: Sequence[Pause], temperature: float, max_tokens: int, seed: int) -> Score:
    """Return what developers do with the model's completions at these pauses."""
    texts = generator.complete([(look.prefix, look.suffix) for look in looks], max_tokens, temperature, seed)
    outcomes = [look.answer(text)[0] for look, text in zip(looks, texts, strict=True)]
    accepted, characters = [one.accepted for one in outcomes], [one.accepted_characters for one in outcomes]
    return Score(temperature, float(np.mean(accepted)), float(np.mean(characters)))


def best(scores: Sequence[Score]) -> Score:
    """Return the score with the most accepts; of equal ones, that with the higher temperature."""
    return max(scores, key=lambda score: (score.accepted, score.temperature))


def tune(settings: Settings, options: Options, code: Code, progress: Progress) -> None:
    """Train the checkpoint on places of these files, and replace its weights."""
    renderer = update.renderer_of(options.model, settings.model)
    looks = pauses(code, options.places, options.seed)
    samples = places(looks, renderer, settings.serving.sampling.max_tokens)
    changes = {"learning_rate": options.learning_rate, "settled_exponent": options.exponent, "seed": options.seed}
    training = settings.train.model_copy(update=TRAINING | changes)
    steps = -(-len(samples) // training.minibatch)
    with TemporaryDirectory(prefix="tabloop-tune-") as folder, progress.part("tune: steps", steps) as part:

        def take(line: str) -> None:
            progress.say(line)
            if line.startswith("step "):
                part.advance()

        job = update.job_of(Path(folder), options.model.resolve(), samples, "0", training)
        checkpoint = update.train(job, training, take)
        weights = {name: tensor.bfloat16() for name, tensor in load_file(checkpoint / WEIGHTS).items()}
        save_file(weights, options.model / WEIGHTS, metadata={"format": "pt"})  # as pretraining leaves it


def run(settings: Settings, options: Options) -> None:
    """Tune the model and write its best temperature."""
    tuned, kept_back = sources(options.seed)
    with Progress(Console()) as progress:
        if options.places:
            tune(settings, options, tuned, progress)
        looks = pauses(kept_back, options.compared, options.seed)
        generator, scores = Generator(options.model, settings.model), []
        with progress.part("tune: temperatures", len(TEMPERATURES)) as part:
            for temperature in TEMPERATURES:
                scores.append(score(generator, looks, temperature, settings.serving.sampling.max_tokens, options.seed))
                part.advance()
                found = f"{scores[-1].accepted:.2%} accepted, {scores[-1].characters:.3f} characters"
                progress.say(f"temperature {temperature}: {found}")
    path = options.model / GENERATION
    chosen = {"do_sample": True, "temperature": best(scores).temperature}
    path.write_text(json.dumps(json.loads(path.read_text()) | chosen, indent=2))
