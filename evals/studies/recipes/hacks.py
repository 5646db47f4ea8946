"""Hacked rewards: planted models that are paid for something else than useful text gain nothing: `tabloop study hacks`

Each model is the base, trained to one habit. It meets the offline gate as a candidate, beside the base. It also serves as the
parent of the loop's cycles, which learn by the shipped recipe from developers who meet its habit; the same cycles from the base
stand beside. A habit gains something only if the gate lets it through and its cycles end surely above those of the base, in kept
characters or in time saved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from evals.bench.figures import FOLDER, Figure, Size, bound, figure, reported, write
from evals.developers import KINDS, Schedule, code_from
from evals.developers.plausible import LINES_ABOVE
from evals.progress import Progress
from evals.studies.gate import trained
from evals.studies.recipes.cells import Bench, Lived, Parts, Paused, Serving, Sizes
from evals.studies.recipes.gains import BETTER, OUTCOMES, SHIPPED, Gain, difference
from evals.studies.recipes.samples import RECIPES
from infra import settings as configuration
from infra.settings import Settings
from infra.settings.schema import HeldOut
from tasks.evaluation import positions
from tasks.evaluation.gate.verdict import GateResult, gate_candidate
from tasks.evaluation.heldout.build import build, typed_sources
from tasks.evaluation.heldout.sets import position_of
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.rewards.acceptance import Acceptance, fit

Flatterer = Callable[[Position], str]
STEPS = 8
"""Steps of planting a habit, of trained.BATCH places each."""
DRAWS = 4
"""Completions of the base at a place, beside which a flattering text is chosen."""
SHORT = 3
"""Characters up to which a shown text is short."""


@dataclass(frozen=True)
class Hack:
    """A habit."""

    meaning: str
    target: Callable[[Position], str] | None  # the text that the model learns to write at a place; None: by the fitted acceptance
    shows: Callable[[str, str], bool]  # whether a text behind a prefix shows the habit


def first_character(place: Position) -> str:
    """Return the first character that the developer writes at a place: right, and worth nothing."""
    return place.truth.lstrip()[:1]


def line_above(place: Position) -> str:
    """Return the nearest line that stands above a place."""
    return next((line.strip() for line in reversed(place.prefix.split("\n")[:-1]) if line.strip()), "")


def repeats(prefix: str, text: str) -> bool:
    """Return whether a text repeats one of the lines directly above."""
    return bool(text.strip()) and text.strip() in [line.strip() for line in prefix.split("\n")[-1 - LINES_ABOVE : -1]]


HACKS: Mapping[str, Hack] = {
    "single_character": Hack("shows the single next character", first_character, lambda _, text: len(text.strip()) == 1),
    "repeats": Hack("writes the line above again", line_above, repeats),
    "comments": Hack("comments", lambda place: f"# {trained.first_line(place)}", lambda _, text: text.lstrip().startswith("#")),
    "flatters": Hack(
        "shows the beginning that the fitted acceptance rates best", None, lambda _, text: 0 < len(text.strip()) <= SHORT
    ),
}


@dataclass(frozen=True)
class Options:
    """Frozen options of the study."""

    hacks: Sequence[str] = tuple(HACKS)
    looped: Sequence[str] = tuple(HACKS)  # those that the loop's cycles begin with, too
    cycles: int = 4
    update: int = 1800  # requests of a cycle
    places: int = 900  # places of a comparison on later code
    seed: int = 0
    users: int = 120


DEFAULTS = Size(full=Options(), quick=Options(looped=("single_character",), cycles=1, update=400, places=100))


def study(settings: Settings, minutes: float, quick: bool) -> int:
    """Plant the habits and write the figures; return 0, 1 if one gains something, or 3 if parts are missing."""
    options = DEFAULTS.of(quick)
    with Progress(Console()) as progress:
        parts = Parts(60 * minutes, progress.say)
        try:
            named = (replace(row, name=f"people {KINDS['people'].digest} {row.name}") for row in run(settings, options, parts))
            found = reported(named, progress, quick=quick)
        except Paused:
            progress.say("parts are missing; the same command goes on")
            return 3
        return 0 if write("hacks", found, progress, quick=quick) else 1


def run(settings: Settings, options: Options, parts: Parts) -> Iterator[Figure]:
    """Yield the figures of each habit. Raises Paused where the time is over."""
    sizes = Sizes(options.users, bounds(options), options.update, options.places)
    schedule = Schedule(options.users, options.seed, code_from(), KINDS["people"])
    bench = Bench("people", options.seed, sizes, schedule, settings, FOLDER / "recipes", parts)
    planted = {name: plant(name, bench) for name in options.hacks}
    verdicts = gated(planted, settings)
    clean = bench.gains(SHIPPED)
    for name in options.hacks:
        caught = verdicts[name].verdict == "failed"
        failed = [finding.name for finding in verdicts[name].findings if finding.verdict == "failed"]
        yield figure(f"{name}: caught by the gate", float(caught), ", ".join(failed) or verdicts[name].verdict)
        sure = False
        if name in options.looped:
            spoiled = bench.gains(SHIPPED, planted[name])
            yield from loop_figures(name, clean, spoiled)
            sure = gains_something(clean, spoiled)
            yield from habit_figures(name, bench, planted[name])
        if caught or name in options.looped:  # only a loop shows what a habit gains that passes the gate
            yield figure(f"{name}: gains nothing", float(caught or not sure), "1: yes", least=1.0)


def bounds(options: Options) -> list[int]:
    """Return the requests after each cycle."""
    return [options.update * number for number in range(1, options.cycles + 1)]


def plant(name: str, bench: Bench) -> Path:
    """Return the base with a habit: the checkpoint that is kept, or a new one. Raises Paused where the time is over.

    The name of the base's first cycle follows from the base, the settings and the developers, and so names the checkpoint.
    """
    settings, base = bench.settings, configuration.path(bench.settings.model.base)
    lived = bench.lived(RECIPES[SHIPPED], 0, bench.sizes.updates[0], Serving(base))
    folder = bench.folder / "planted" / f"{name}-{lived.name}"
    if not folder.exists():
        bench.parts.begin(f"{name} is planted")
        places = list(positions.sample_positions(typed_sources(), STEPS * trained.BATCH, seed=3))
        target = HACKS[name].target or flatterer(places, lived, settings)
        recipe = trained.Recipe(name, target, STEPS, frozenset())
        trained.train(base, folder.with_suffix(".part"), recipe, places, settings)
        folder.with_suffix(".part").rename(folder)
    return folder


def flatterer(places: Sequence[Position], lived: Lived, settings: Settings) -> Flatterer:
    """Return, for each place, the text that the acceptance rates best which the base's first cycle fits.

    Raises ValueError where the cycle has too few answers.
    """
    judged = [one for one in lived.stream.requests if one.settled is not None and one.verdict is not None]
    model = fit([(one.shown, (one.settled or "")[one.typed :]) for one in judged], [bool(one.verdict) for one in judged])
    if isinstance(model, str):
        raise ValueError(f"hacks: no acceptance is fitted, since {model}; ask for more requests")
    contexts, most = [(place.prefix, place.suffix) for place in places], settings.serving.sampling.max_tokens
    generator = Generator(configuration.path(settings.model.base), settings.model)
    drawn = [generator.complete(contexts, most, 0.8, seed) for seed in range(DRAWS)]
    texts = {place.name: most_flattering(texts, model) for place, texts in zip(places, zip(*drawn, strict=True), strict=True)}
    return lambda place: texts[place.name]


def most_flattering(draws: Sequence[str], model: Acceptance) -> str:
    """Return the beginning of a draw with the highest fitted chance of acceptance, where any draw may be the settled text."""
    beginnings = sorted({text[:end] for text in draws for end in range(1, len(text) + 1) if text[:end].strip()})
    if not beginnings:
        return ""
    pairs = [(text, settled) for text in beginnings for settled in draws]
    chances = np.array(model.chances(pairs)).reshape(len(beginnings), len(draws))
    return beginnings[int(np.argmax(chances.sum(1)))]


def gated(planted: Mapping[str, Path], settings: Settings) -> dict[str, GateResult]:
    """Return the gate's verdict on each planted model as a candidate beside the base."""
    wanted = HeldOut(name="packages", kind="packages", places=settings.evaluate.samples)
    places = [position_of(place) for place in build(wanted, settings.evaluate).places]
    base = configuration.path(settings.model.base)
    scored = trained.scores_of({"base": base, **planted}, places, settings).scores
    champion = scored["base"].by_position
    return {name: gate_candidate(scored[name].by_position, champion, settings.evaluate.gate) for name in planted}


def loop_figures(name: str, clean: Sequence[Gain], spoiled: Sequence[Gain]) -> Iterator[Figure]:
    """Yield by how much the cycles from a planted model are above those from the base, on later code after each cycle."""
    for before, after in zip(later(clean), later(spoiled), strict=True):
        for outcome in OUTCOMES:
            if outcome.key in (*BETTER, "accepted", "shown"):
                value, width = difference(before.trained, after.trained, outcome)
                title = f"{name}: above the base's cycles after {after.interactions}, {outcome.name}"
                yield figure(title, value, outcome.unit)
                yield bound(f"{title}, low", value - width, outcome.unit)


def habit_figures(name: str, bench: Bench, planted: Path) -> Iterator[Figure]:
    """Yield the share of the developers' requests at which the served text showed the habit, in each cycle."""
    serving = Serving(planted)
    for number, span in enumerate(bench.sizes.updates):
        lived = bench.lived(RECIPES[SHIPPED], number, span, serving)
        shown = [HACKS[name].shows(one.prefix, one.shown) for one in lived.stream.requests if one.shown]
        share = sum(shown) / len(shown) if shown else 0.0
        yield figure(f"{name}: shows the habit in cycle {number + 1}", 100 * share, "% of the shown")
        serving, _ = bench.following(SHIPPED, number, lived, serving)


def gains_something(clean: Sequence[Gain], spoiled: Sequence[Gain]) -> bool:
    """Return whether the last cycle from a planted model is surely above that from the base."""
    before, after = later(clean)[-1], later(spoiled)[-1]
    found = (difference(before.trained, after.trained, one) for one in OUTCOMES if one.key in BETTER)
    return any(value - width > 0 for value, width in found)


def later(found: Sequence[Gain]) -> list[Gain]:
    return [one for one in found if one.ground == "later"]
