"""The parts of a recipe's run: requests, samples, a trained checkpoint, its outcomes on a ground; each kept for the next call.

A part's name is a digest of its weights, samples, settings and the developers' rates. So the base is measured once for a seed,
two recipes that teach the same rows are one model, and a run that was stopped goes on.

Outcomes are those of completions as served: the decision to show cuts or suppresses them. Its estimate is cross-fitted: the
positions of one half of the developers decide for the other half.
"""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from evals.base_model import update
from evals.compare.gains import Sums
from evals.developers import DeveloperKind, Schedule
from evals.developers.grounds import GROUNDS, Ground
from evals.developers.tally import Counts
from evals.studies.recipes.drift import Drift, accepted_quality, own_share, standing_share
from evals.studies.recipes.gains import Gain
from evals.studies.recipes.loop import Loop
from evals.studies.recipes.policy import Policy
from evals.studies.recipes.samples import RECIPES, Lesson, Recipe, samples_of
from evals.studies.recipes.stream import Request, Stream, open_stream
from evals.studies.showing.rules import OUTCOMES, CompletedPauses, Shown, completed
from infra import settings as configuration
from infra.model.showing import Estimate, Place, decide
from infra.records import Sample
from infra.settings import Settings
from infra.settings.serving import Sampling, Showing
from infra.settings.training import Train
from infra.storage.store import from_parquet, to_parquet
from tasks.evaluation.models.base import SampledCompletion
from tasks.evaluation.models.generation import Generator
from tasks.showing.fit import Unfitted, fit
from tasks.showing.labels import Compared, LabelledCompletion, kept_up_to, label_of, tokens_of
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.options import UpdateSettings

SERVED_BY: dict[str, Any] = {"model": True, "collect": {"hindsight"}, "serving": {"sampling", "showing"}}
SAMPLED_BY = SERVED_BY | {"reward": True, "train": {"groups"}}
"""Settings that the requests of a cycle follow from, and those of the samples. A setting of anything else renames no part."""
COSTS = "costs.json"
"""Name of the file of an update's costs."""
DRIFT = {"quality": "0 to 1", "variety": "distinct texts per shown text", "length": "characters", "agreement": "0 to 1"}
"""Units of the probe."""
Costs = dict[str, tuple[float, str]]
"""Figures by name, with their units."""
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
    places: int  # positions on `later`; half as many on `new`

    def places_of(self, ground: Ground) -> int:
        """Return the number of positions on a ground."""
        return max(1, self.places // {"later": 1, "new": 2}[ground])

    @property
    def updates(self) -> list[tuple[int, int]]:
        """The first pause of each update, and the pause after its last one."""
        bounds = [0]
        for stop in self.interactions:
            bounds += [*range(bounds[-1] + self.update, stop, self.update), stop]
        return list(pairwise(bounds))


@dataclass(frozen=True)
class Serving:
    """The model that serves a cycle."""

    checkpoint: Path
    estimate: Estimate | None = None  # its decision to show; None: all is shown, as of a model that no cycle made
    session: int = 0  # session that the cycle begins with, of a closed loop


@dataclass(frozen=True)
class Lived:
    """The requests of a cycle, as a part."""

    name: str
    stream: Stream
    seconds: float  # time that it took to make them


@dataclass(frozen=True)
class Bench:
    """The runs of one seed."""

    kind: DeveloperKind  # people: a closed loop; plain: developers who accept nothing, in an open stream
    seed: int
    sizes: Sizes
    schedule: Schedule
    settings: Settings
    folder: Path
    parts: Parts

    def gains(self, recipe: str, start: Path | None = None) -> list[Gain]:
        """Return a recipe's gain on the base, on each ground after each number of requests. Raises Paused where the time is over.

        `start`: checkpoint that the first cycle serves and trains; None: the base.
        """
        base, served = configuration.path(self.settings.model.base), self.settings.serving.sampling.temperature
        best = float(json.loads((base / "generation_config.json").read_text())["temperature"])
        serving, found = Serving(start or base), []
        for number, (first, stop) in enumerate(self.sizes.updates):
            lived = self.lived(RECIPES[recipe], number, (first, stop), serving)
            serving, costs = self.following(recipe, number, lived, serving)
            for ground in GROUNDS if stop in self.sizes.interactions else ():
                ours, theirs = self.outcomes(serving.checkpoint, ground, served), self.outcomes(base, ground, best)
                notes = self._notes(serving.checkpoint, base, ground, served)
                if ground == FITTED:
                    notes |= {"seconds of the requests": (lived.seconds, "s")} | costs | notes_of(lived.stream)
                found.append(Gain(ground, stop, theirs[1], theirs[0], ours[1], ours[0], notes))
        return found

    def following(self, recipe: str, number: int, lived: Lived, serving: Serving) -> tuple[Serving, Costs]:
        """Return the model that serves the next cycle, which learns from this cycle's requests, and the costs of making it."""
        checkpoint, costs = self.trained(recipe, number, lived, serving)
        return Serving(checkpoint, estimate_of(lived.stream), lived.stream.next_session), costs

    def lived(self, recipe: Recipe, number: int, span: tuple[int, int], serving: Serving) -> Lived:
        """Return the requests of a cycle with the developers' answers."""
        first, stop = span
        decision = serving.estimate.model_dump_json() if serving.estimate else ""
        of = f"{self.kind} {self.seed} {self.sizes.users} {first} {stop} {serving.session} {recipe.temperature} {recipe.explored}"
        read = self.settings.model_dump_json(include=SERVED_BY)
        served = decision, of, self.schedule.quirks.digest, read, *Request.__dataclass_fields__
        name = digest(weights_of(serving.checkpoint), *served)
        file = self.folder / "streams" / f"{name}.json"
        if not file.exists():
            self.parts.begin(f"{self.kind}, seed {self.seed}: requests {first} to {stop}")
            began = time.monotonic()
            policy = Policy(serving.checkpoint, self.settings, serving.estimate, recipe.temperature, recipe.explored)
            count, seed = stop - first, self.seed * 1000 + number
            if self.kind == "people":
                made = Loop(self.schedule, serving.session, count, policy, seed).run(self.settings.collect.hindsight)
            else:
                made = open_stream(self.schedule, first, count, policy, self.settings, seed)
            body = {"stream": asdict(made), "seconds": time.monotonic() - began}
            write_whole(file, json.dumps(body).encode())
        body = json.loads(file.read_text())
        return Lived(name, stream_of(body["stream"]), body["seconds"])

    def trained(self, recipe: str, number: int, lived: Lived, serving: Serving) -> tuple[Path, Costs]:
        """Return the checkpoint of an update, the one that is kept or a new one, and its costs."""
        parent, version = serving.checkpoint, str(number + 1)
        body, seconds = self._samples(recipe, lived, parent, version)
        training = self.settings.train.model_copy(update=RECIPES[recipe].update)
        folder = self.folder / "models" / digest(weights_of(parent), body, options_of(training))
        if not (folder / CHECKPOINT_NAME).exists():
            self.parts.begin(f"{self.kind}, seed {self.seed}, {recipe}: update {version}")
            work = folder.with_suffix(".part")
            shutil.rmtree(work, ignore_errors=True)
            update.train(update.job_of(work, parent, from_parquet(body, Sample), version, training), training)
            (work / COSTS).write_text(json.dumps(update.costs(work)))
            work.rename(folder)
        costs = {name: (value, unit) for name, (value, unit) in json.loads((folder / COSTS).read_text()).items()}
        return folder / CHECKPOINT_NAME, {"seconds of the samples": (seconds, "s"), **costs}

    def _samples(self, recipe: str, lived: Lived, parent: Path, version: str) -> tuple[bytes, float]:
        read = self.settings.model_dump_json(include=SAMPLED_BY)
        name = digest(weights_of(parent), repr(RECIPES[recipe]), f"{self.seed} {version}", lived.name, read)
        file = self.folder / "samples" / f"{recipe}-{name}.parquet"
        if not file.exists():
            self.parts.begin(f"{self.kind}, seed {self.seed}, {recipe}: samples of version {version}")
            began = time.monotonic()
            lesson = Lesson(lived.stream, self.schedule, parent, self.settings, version, self.seed)
            body = to_parquet(samples_of(RECIPES[recipe], lesson))
            write_whole(file.with_suffix(".json"), json.dumps(time.monotonic() - began).encode())
            write_whole(file, body)
        return file.read_bytes(), json.loads(file.with_suffix(".json").read_text())

    def outcomes(self, checkpoint: Path, ground: Ground, temperature: float) -> list[Sums]:
        """Return the developers' outcomes with a checkpoint's completions on a ground, all of them shown, then as served."""
        showing, sampling = self.settings.serving.showing, self.settings.serving.sampling
        read = f"{showing.model_dump_json()} {self.schedule.quirks.digest} {OUTCOMES}"
        file = self.folder / "sums" / f"{self._name(checkpoint, ground, temperature, read)}.json"
        if not file.exists():
            places = self._places(checkpoint, ground, temperature)
            estimates = cross_fitted(places if ground == FITTED else self._places(checkpoint, FITTED, temperature))
            outcomes = places.outcomes()
            found = [outcomes.of(shown) for shown in (places.everything, shown_of(estimates, places, showing, sampling))]
            write_whole(file, json.dumps([asdict(one) for one in found], default=np.ndarray.tolist).encode())
        rows = json.loads(file.read_text())
        return [Sums(np.array(row["requests"]), {name: np.array(v) for name, v in row["values"].items()}) for row in rows]

    def _notes(self, checkpoint: Path, base: Path, ground: Ground, temperature: float) -> dict[str, tuple[float, str]]:
        """Return the probe of a model and of the base on a ground."""
        own, before = (asdict(Drift.of(self._places(one, ground, temperature))) for one in (checkpoint, base))
        of_base = {f"{name} of the base": (value, DRIFT[name]) for name, value in before.items()}
        return {name: (value, DRIFT[name]) for name, value in own.items()} | of_base

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


def stream_of(row: Mapping[str, Any]) -> Stream:
    """Return a stream as it was kept."""
    requests = []
    for one in row["requests"]:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
        requests.append(Request(**values))
    return Stream(tuple(requests), Counts(**row["counts"]), row["next_session"], row["aggregates"])


def estimate_of(stream: Stream) -> Estimate | None:
    """Return the decision to show that a cycle fits on its requests; None where they are too few."""
    return fitted_on(map(labelled_of, stream.requests))


def fitted_on(completions: Iterable[LabelledCompletion]) -> Estimate | None:
    """Return the decision to show that is fitted on completions with a label; None where they are too few."""
    fitted = fit([one for one in completions if not np.isnan(one.kept).all()])
    return None if isinstance(fitted, Unfitted) else fitted.estimate


def labelled_of(request: Request) -> LabelledCompletion:
    """Return a request's completion with its labels, as a cycle has them."""
    kept, compared = np.full(len(request.ends), np.nan), None
    accepted = {"accepted": True, "rejected": False}.get(request.outcome)
    if request.settled is not None:
        kept = kept_up_to(request.text, request.ends, request.settled, request.whole)
        compared = Compared(request.settled, request.shown, request.verdict, request.typed)
    elif at := tokens_of(request.ends, request.extent):
        kept[at - 1] = label_of(request.outcome, request.kept, len(request.shown.rstrip()))
    place = Place(request.prefix, request.suffix, "", *request.acceptance)
    return LabelledCompletion(
        place, request.temperature, request.text, request.logprobs, request.ends, kept, accepted, compared=compared
    )


def notes_of(stream: Stream) -> Costs:
    """Return figures of the requests that a cycle learnt from."""
    counts = stream.counts
    return {
        "requests: accepted": (100 * counts.accepted / max(counts.requests, 1), "%"),
        "requests: pauses with suggestions off": (100 * counts.off / max(counts.off + counts.requests, 1), "%"),
        "requests: time saved": (counts.saved_per_hour, "s per hour of writing"),
        "requests: settled texts that the model wrote": (100 * own_share(stream), "%"),
        "requests: accepted texts that stand": (100 * standing_share(stream), "% of the requests"),
        "requests: hidden quality of accepted texts": (accepted_quality(stream), "0 to 1"),
        **{f"requests: {name}": (value, "") for name, value in stream.aggregates.items()},
    }


def options_of(training: Train) -> str:
    """Return the options that the trainer reads of its settings."""
    return UpdateSettings(**training.model_dump(include={*UpdateSettings.model_fields})).model_dump_json()


def weights_of(checkpoint: Path) -> bytes:
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
    rows = list(zip(places.pauses, places.completions, strict=True))
    return [fitted_on(c for p, c in rows if half_of(p.developer.name) != half) for half in (0, 1)]


def shown_of(estimates: Estimates, places: CompletedPauses, showing: Showing, sampling: Sampling) -> Shown:
    """Return the number of tokens shown of each completion at the default level."""
    shown, price = [], showing.price(showing.level)
    for pause, completion in zip(places.pauses, places.completions, strict=True):
        estimate, ends = estimates[half_of(pause.developer.name)], completion.ends
        if estimate is None or price is None:
            shown.append(len(ends))
        else:
            chances = estimate.at(completion.place).chances(completion.logprobs, ends)
            shown.append(decide(chances, ends, completion.text, price, sampling.max_tokens, cuts=estimate.cuts).shown)
    return shown
