"""Tuning of the base model to the places at which editors ask, and its best temperature. Its own training sources only.

Pretraining cuts a span anywhere in a finished file. Editors ask where somebody is writing: at the end of a token, for the rest of
a line or a few lines, in a function whose rest does not stand there yet. A model that was trained on such places writes more of
what is right and knows better where to end. None of that comes from a team, so it belongs into the base that a team's gain is
measured against.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.base_model.corpus import truncate
from evals.developers import Pause, Schedule
from infra.model.fim import END, Renderer
from infra.records import Sample
from tasks.evaluation.heldout import site_packages, standard_library, training_files
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Code, Source, read_sources

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
