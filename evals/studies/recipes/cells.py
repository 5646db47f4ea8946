"""The parts of a recipe's run: samples, a trained checkpoint, its outcomes on a ground; each kept for the next call.

A part's name is a digest of its weights, samples and settings. So the base is measured once for a seed, two recipes that teach
the same rows are one model, and a run that was stopped goes on.

Outcomes are those of completions as served: the decision to show cuts or suppresses them. Its estimate is cross-fitted: the
positions of one half of the developers decide for the other half.
"""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from evals.base_model import update
from evals.compare.gains import Sums
from evals.developers import Schedule
from evals.developers.grounds import GROUNDS, Ground
from evals.studies.recipes.gains import Gain
from evals.studies.recipes.samples import RECIPES, Interactions
from evals.studies.showing.rules import CompletedPauses, Shown, completed
from infra import settings as configuration
from infra.model.showing import Estimate, decide
from infra.records import Sample
from infra.settings import Settings
from infra.settings.serving import Sampling, Showing
from infra.storage.store import from_parquet, to_parquet
from tasks.evaluation.models.base import SampledCompletion
from tasks.evaluation.models.generation import Generator
from tasks.showing.fit import Unfitted, fit
from tasks.trainer.job import CHECKPOINT_NAME

READ_SETTINGS = {"model", "train", "reward", "collect", "serving"}
FITTED: Ground = "later"
"""Ground that the decision to show is fitted on."""
Estimates = Sequence[Estimate | None]
"""Of each half of the developers, fitted on the positions of the other half; None where these are too few: all is shown then, as
serving does."""


class Paused(Exception):
    """The parts of this call are made; the next call goes on."""


@dataclass
class Parts:
    """The parts that this call makes."""

    seconds: float  # no part is begun after so many seconds; the first one always is
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    began: float | None = None  # when the first part was begun

    def begin(self, what: str) -> None:
        """Show the part that begins. Raises Paused if the time is over."""
        now = self.clock()
        self.began = now if self.began is None else self.began
        if now - self.began > self.seconds:
            raise Paused
        self.say(what)


@dataclass(frozen=True)
class Sizes:
    """How much is compared."""

    users: int
    interactions: Sequence[int]  # pauses after which models are compared, ascending; an update trains on those since the last one
    update: int  # most pauses of one update
    places: int  # positions on `later`; half as many on `new`, an eighth on `seen`

    def places_of(self, ground: Ground) -> int:
        """Return the number of positions on a ground."""
        return max(1, self.places // {"later": 1, "new": 2, "seen": 8}[ground])

    @property
    def updates(self) -> list[tuple[int, int]]:
        """The first pause of each update, and the pause after its last one."""
        bounds = [0]
        for stop in self.interactions:
            bounds += [*range(bounds[-1] + self.update, stop, self.update), stop]
        return list(pairwise(bounds))


@dataclass(frozen=True)
class Bench:
    """The runs of one seed."""

    seed: int
    sizes: Sizes
    schedule: Schedule
    settings: Settings
    folder: Path
    parts: Parts

    def gains(self, recipe: str) -> list[Gain]:
        """Return a recipe's gain on each ground after each number of interactions. Raises Paused where the time is over."""
        base, served = configuration.path(self.settings.model.base), self.settings.serving.sampling.temperature
        best = float(json.loads((base / "generation_config.json").read_text())["temperature"])
        found, checkpoint = [], base
        for number, (first, stop) in enumerate(self.sizes.updates):
            checkpoint = self.trained(recipe, number, (first, stop), checkpoint)
            for ground in GROUNDS if stop in self.sizes.interactions else ():
                models = (base, best), (base, served), (checkpoint, served)
                (at_best, _), (_, own), (all_shown, trained) = (self.outcomes(model, ground, at) for model, at in models)
                found.append(Gain(ground, stop, at_best, own, trained, all_shown))
        return found

    def trained(self, recipe: str, number: int, span: tuple[int, int], parent: Path) -> Path:
        """Return the checkpoint of an update: the one that is kept, or a new one."""
        body, version = self._samples(recipe, number, span, parent), str(number + 1)
        training = self.settings.train.model_copy(update=dict(RECIPES[recipe].training))
        folder = self.folder / "models" / digest(weights_of(parent), body, training.model_dump_json())
        if not (folder / CHECKPOINT_NAME).exists():
            self.parts.begin(f"seed {self.seed}, {recipe}: update {version}")
            work = folder.with_suffix(".part")
            shutil.rmtree(work, ignore_errors=True)
            update.train(update.job_of(work, parent, from_parquet(body, Sample), version, training), training)
            work.rename(folder)
        return folder / CHECKPOINT_NAME

    def _samples(self, recipe: str, number: int, span: tuple[int, int], parent: Path) -> bytes:
        first, stop = span
        read = self.settings.model_dump_json(include=READ_SETTINGS)
        name = digest(weights_of(parent), recipe, f"{self.seed} {self.sizes.users} {first} {stop}", read)
        file = self.folder / "samples" / f"{recipe}-{name}.parquet"
        if not file.exists():
            self.parts.begin(f"seed {self.seed}, {recipe}: samples {first} to {stop}")
            version, seed = str(number + 1), self.seed * 1000 + number
            given = Interactions(self.schedule, first, stop - first, parent, self.settings, version, seed)
            write_whole(file, to_parquet(RECIPES[recipe].samples(given)))
        return file.read_bytes()

    def outcomes(self, checkpoint: Path, ground: Ground, temperature: float) -> list[Sums]:
        """Return the developers' outcomes with a checkpoint's completions on a ground, all of them shown, then as served."""
        showing, sampling = self.settings.serving.showing, self.settings.serving.sampling
        file = self.folder / "sums" / f"{self._name(checkpoint, ground, temperature, showing.model_dump_json())}.json"
        if not file.exists():
            places = self._places(checkpoint, ground, temperature)
            estimates = cross_fitted(places if ground == FITTED else self._places(checkpoint, FITTED, temperature))
            outcomes = places.outcomes()
            found = [outcomes.of(shown) for shown in (places.everything, shown_of(estimates, places, showing, sampling))]
            write_whole(file, json.dumps([asdict(one) for one in found], default=np.ndarray.tolist).encode())
        rows = json.loads(file.read_text())
        return [Sums(np.array(row["requests"]), {name: np.array(v) for name, v in row["values"].items()}) for row in rows]

    def _name(self, checkpoint: Path, ground: Ground, temperature: float, *more: str) -> str:
        count, most = self.sizes.places_of(ground), self.settings.serving.sampling.max_tokens
        of = f"{self.seed} {self.sizes.users} {ground} {count} {temperature} {most}"
        return digest(weights_of(checkpoint), of, self.settings.model.model_dump_json(), *more)

    def _places(self, checkpoint: Path, ground: Ground, temperature: float) -> CompletedPauses:
        """Return the positions of a ground with the completions of a checkpoint."""
        count, model = self.sizes.places_of(ground), self.settings.model
        pauses = [self.schedule.first_pause(number, ground) for number in range(count)]
        file = self.folder / "completions" / f"{self._name(checkpoint, ground, temperature)}.json"
        if not file.exists():
            self.parts.begin(f"seed {self.seed}: {count} positions of {ground} at {temperature}")
            contexts, most = [(pause.prefix, pause.suffix) for pause in pauses], self.settings.serving.sampling.max_tokens
            made = Generator(checkpoint, model).sample(contexts, most, temperature, self.seed)
            write_whole(file, json.dumps([asdict(completion) for completion in made]).encode())
        sampled = [SampledCompletion(**row) for row in json.loads(file.read_text())]
        return completed(pauses, sampled, Tokenizer.from_file(str(checkpoint / "tokenizer.json")), temperature)


def weights_of(checkpoint: Path) -> bytes:
    """Return the bytes of a checkpoint's weights."""
    return (checkpoint / "model.safetensors").read_bytes()


def digest(*parts: bytes | str) -> str:
    """Return a name for the result of these parts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return whole.hexdigest()[:16]


def write_whole(file: Path, body: bytes) -> None:
    """Write a file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(body)
    part.rename(file)


def half_of(user: str) -> int:
    """Return the half, 0 or 1, that a developer belongs to."""
    return zlib.crc32(user.encode()) % 2


def cross_fitted(places: CompletedPauses) -> Estimates:
    """Return the estimate for each half of the developers."""
    found: list[Estimate | None] = []
    for half in (0, 1):
        others = [c for p, c in zip(places.pauses, places.completions, strict=True) if half_of(p.developer.name) != half]
        fitted = fit([c for c in others if not np.isnan(c.kept).all()])
        found.append(None if isinstance(fitted, Unfitted) else fitted.estimate)
    return found


def shown_of(estimates: Estimates, places: CompletedPauses, showing: Showing, sampling: Sampling) -> Shown:
    """Return the number of tokens shown of each completion at the default level."""
    shown, price = [], showing.price(showing.level)
    for pause, completion, text in zip(places.pauses, places.completions, places.texts, strict=True):
        estimate, ends = estimates[half_of(pause.developer.name)], completion.ends
        if estimate is None or price is None:
            shown.append(len(ends))
        else:
            chances = estimate.at(completion.place).chances(completion.logprobs, ends)
            shown.append(decide(chances, ends, text, price, sampling.max_tokens).shown)
    return shown
