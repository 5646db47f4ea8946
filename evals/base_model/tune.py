"""Tunes the base model to the places at which editors ask, and chooses its temperature: python -m evals.base_model.tune

The second half of `make base`. It reads the base model's training sources only, writes the tuned weights in place of the model's,
and writes the best temperature to generation_config.json.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from evals.base_model import tuning
from evals.progress import Progress
from infra import settings as configuration
from infra.model.fim import Renderer
from infra.settings import Settings
from infra.settings.training import Recipe
from infra.storage.store import to_parquet
from tasks.evaluation.models.generation import Generator
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import command, follow, write_job

GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m evals.base_model.tune", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, default=Path("infra/base_model"), help="checkpoint to tune, in place (default %(default)s)")
    add("--places", type=int, default=19_200, help="places to train on; 0: only choose the temperature (default %(default)s)")
    add("--learning-rate", type=float, default=1e-3, help="learning rate at the start (default %(default)s)")
    add("--exponent", type=float, default=0.3, help="train.settled_exponent; 0: the cross-entropy (default %(default)s)")
    add("--compared", type=int, default=2000, help="places that each temperature is tried at (default %(default)s)")
    add("--seed", type=int, default=0, help="of places and draws (default %(default)s)")
    return parser.parse_args()


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


def tune(settings: Settings, options: argparse.Namespace, sources: tuning.Sources, progress: Progress) -> None:
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


def main() -> None:
    """Tune the model and write its best temperature."""
    options, settings = parse_arguments(), configuration.load()
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


if __name__ == "__main__":
    main()
