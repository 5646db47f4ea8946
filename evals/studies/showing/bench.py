"""Compare the decision to show with plain rules

Simulated developers as people pause in live sessions; the base completes at the temperature that people are served at. The
estimate is fitted on the settled text and the verdicts at the earlier pauses. At the later ones, each rule decides what is shown
of the same completions, and the developer there judges it. No server takes part.
"""

import time
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from evals.bench.figures import Bench, Figure, Size, figure
from evals.developers import People, Quirks, Schedule, code_from
from evals.progress import Part
from evals.studies.showing.rules import CompletedPauses, Shown, comparison, completed, level_figures
from infra import settings as configuration
from infra.model.showing import Estimate, decide
from infra.model.time_saved import per_hour
from infra.settings import Settings
from tasks.evaluation.models.generation import Generator
from tasks.showing.fit import Unfitted, checked, chosen, fit
from tasks.showing.labels import weighed
from tasks.showing.reliability import reliability

REQUESTS = Size(full=14_000, quick=1200)
"""Pauses, of which the estimate learns from half."""
USERS, SEED = 240, 0
"""Developers; the seed of developers, sessions and sampling."""
PRICES = (0.0, *(0.05 * 1.03**step for step in range(180)))
"""Prices of the frontier, in kept characters: 0, then 0.05 to about 10."""
HOLDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Total probabilities below which the first plain rule holds a completion back."""
CUTS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 0.97)
"""Cumulative probabilities below which the second plain rule cuts a completion."""


def places_of(settings: Settings, requests: int, part: Part) -> CompletedPauses:
    """Return the first pauses of the live sessions with the base's completions."""
    schedule, sampling = Schedule(USERS, SEED, code_from(), Quirks(people=People())), settings.serving.sampling
    base = configuration.path(settings.model.base)
    pauses = [schedule.first_pause(number) for number in range(requests)]
    contexts = [(pause.prefix, pause.suffix) for pause in pauses]
    generator = Generator(base, settings.model)
    sampled = generator.sample(contexts, sampling.max_tokens, sampling.temperature, SEED, progress=part.advance)
    return completed(pauses, sampled, Tokenizer.from_file(str(base / "tokenizer.json")), sampling.temperature)


def held(places: CompletedPauses, least: float) -> Shown:
    """Return the first plain rule: all of a completion, or nothing where its probability is below `least`."""
    return [len(c.ends) if np.exp(np.sum(c.logprobs)) >= least else 0 for c in places.completions]


def cut(places: CompletedPauses, least: float) -> Shown:
    """Return the second plain rule: the tokens up to which the probability is not below `least`."""
    return [int(np.sum(np.exp(np.cumsum(c.logprobs)) >= least)) for c in places.completions]


def decision_ms(estimate: Estimate, places: CompletedPauses, max_tokens: int) -> float:
    """Return the milliseconds that the decision on a completion of `max_tokens` takes."""
    rounds, place = 200, places.completions[0].place
    logprobs, ends = [-0.1] * max_tokens, list(range(4, 4 * max_tokens + 1, 4))
    began = time.perf_counter()
    for _ in range(rounds):
        decide(estimate.at(place).chances(logprobs, ends), ends, "abc " * max_tokens, 0.5, max_tokens)
    return (time.perf_counter() - began) * 1e3 / rounds


def figures(settings: Settings, places: CompletedPauses) -> Iterator[Figure]:
    """Fit on the first half of the places; yield what the rules are worth at the others.

    Raises ValueError where the estimate cannot be fitted.
    """
    first = round(len(places.pauses) / 2)
    earlier, later = places[:first], places[first:]
    fitted = fit([c for c in earlier.completions if not np.isnan(c.kept).all()])
    if isinstance(fitted, Unfitted):
        raise ValueError(f"no estimate from {first} places: {fitted.reason}; set more than {len(places.pauses)} REQUESTS")
    estimate, showing, most = fitted.estimate, settings.serving.showing, settings.serving.sampling.max_tokens
    outcomes, labelled = later.outcomes(), weighed(later.completions)
    base = outcomes.of(later.everything)
    yield figure("places", len(later.pauses), "")
    yield figure("shown all: accepted", 100 * base.mean("accepted"), "% of requests")
    yield figure("shown all: kept characters", base.mean("kept"), "a request")
    saved = per_hour(float(base.values["saved"].sum()), float(base.values["written"].sum()))
    yield figure("shown all: time saved", saved, "s per hour of writing")
    yield figure("expected calibration error", checked(estimate, labelled).error, "", most=0.03)
    yield figure("the same, where a beginning looks best", reliability(*chosen(estimate, labelled)).error, "")
    for name, value in zip(("by labels", "standard error"), fitted.cut_gain, strict=True):
        yield figure(f"kept characters by cutting: {name}", value, "a completion")
    yield figure("decision", decision_ms(estimate, later, most), "ms", most=1.0)
    for level in ("eager", "balanced", "quiet"):
        decided = later.decisions(estimate, getattr(showing, level), most)
        sampled = 100 * (sum(d.sampled for d in decided) / sum(later.everything) - 1)
        yield from level_figures(level, outcomes.of([d.shown for d in decided]), base)
        yield figure(f"{level}: tokens sampled", sampled, "%")
    ours = [outcomes.of([d.shown for d in later.decisions(estimate, price, most)]) for price in PRICES]
    for rule, thresholds in ((held, HOLDS), (cut, CUTS)):
        theirs = [outcomes.of(rule(later, threshold)) for threshold in thresholds]
        yield from comparison(rule.__name__, thresholds, theirs, ours, base)


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Complete the pauses, then compare the rules."""
    requests = REQUESTS.of(bench.quick)
    with bench.part("completions", requests, share=0.9) as part:
        places = places_of(settings, requests, part)
    with bench.part("rules", share=0.1):
        yield from figures(settings, places)
