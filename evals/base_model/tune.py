"""Tunes the base model to the positions where editors ask, and chooses its temperature: `tabloop base tune`.

The second half of `tabloop base`. It reads the base model's training sources only, writes the tuned weights in place of the
model's, and writes the best temperature to generation_config.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from evals.base_model import tuning
from evals.progress import Progress
from infra.model.fim import Renderer
from infra.settings import Settings
from infra.settings.training import Recipe
from infra.storage.store import to_parquet
from tasks.evaluation.models.generation import Generator
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import command, follow, write_job

GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"


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


def tune(settings: Settings, options: Options, sources: tuning.Sources, progress: Progress) -> None:
    """Train the checkpoint on places of the tuned files, and replace its weights."""
    model, max_tokens = settings.model, settings.serving.sampling.max_tokens
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    samples = tuning.places(tuning.pauses(sources.tuned, options.places, options.seed), renderer, max_tokens)
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
    sources = tuning.sources(options.seed)
    with Progress(Console()) as progress:
        if options.places:
            tune(settings, options, sources, progress)
        looks = tuning.pauses(sources.kept_back, options.compared, options.seed)
        generator = Generator(options.model, settings.model)
        scores = []
        with progress.part("tune: temperatures", len(tuning.TEMPERATURES)) as part:
            for temperature in tuning.TEMPERATURES:
                scores.append(tuning.score(generator, looks, temperature, settings.serving.sampling.max_tokens, options.seed))
                part.advance()
                found = f"{scores[-1].accepted:.2%} accepted, {scores[-1].characters:.3f} characters"
                progress.say(f"temperature {temperature}: {found}")
    path = options.model / GENERATION
    chosen = {"do_sample": True, "temperature": tuning.best(scores).temperature}
    path.write_text(json.dumps(json.loads(path.read_text()) | chosen, indent=2))
