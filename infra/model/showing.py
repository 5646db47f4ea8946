"""The decision to show: how much of a prefix of a completion is kept, and which prefix is worth an interruption.

    t       token of a completion; T tokens
    chance  expected share of the text up to and including token t that is kept, that is, still in the file a while later; 0 to 1
    value   characters up to token t x chance - price; the price of an interruption is in kept characters

The chance is a logistic regression on FEATURES, fitted by tasks/showing each cycle and shipped with the version as FILE. Each
feature of token t is known once t is sampled, so later tokens never change a shown part. Serving evaluates it for every token, so
it is numpy alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field, model_validator

from infra.model.line_ends import normal_context
from infra.records import Record

FILE = "showing.json"
"""Name of the estimate's file in a version's folder."""
TOKEN_FEATURES = (
    *("surprise", "worst_surprise", "last_surprise", "probability", "lowest_probability"),
    *("log_characters", "log_tokens", "characters", "surprise_by_characters"),
    *("no_text", "no_text_by_surprise", "no_text_by_characters"),
)
"""Features of a token. `no_text` marks one that adds no text: the end token."""
PLACE_FEATURES = ("empty_line", "rest_of_line", "within_word", "user_acceptance", "project_acceptance")
"""Features of a request: no text before the cursor in its line; text behind it; the cursor directly behind a word; the
share of earlier completions that the user, and the project, accepted."""
FEATURES = (*TOKEN_FEATURES, *PLACE_FEATURES)
LEAST_SURPRISE = 1e-7
"""Negative log-probabilities below this are float32's rounding. Surprise is the logarithm of a negative log-probability: at a low
temperature nearly all of them lie close to 0, and their order of magnitude shows the likeliest token's lead."""
CHARACTERS = 20.0
"""Unit of `characters`."""
CHARACTERS_A_TOKEN = 4.0
"""Characters that a token adds on average, to estimate the value of further tokens."""
WORD_END = re.compile(r"\w$")


@dataclass(frozen=True)
class Place:
    """The features of a request that are known before sampling."""

    prefix: str
    suffix: str
    language: str = ""
    user_acceptance: float | None = None
    """Accepted share of the user's earlier completions; None if unknown."""
    project_acceptance: float | None = None
    """Likewise, of the project's."""


class Estimate(Record):
    """Estimates how much of a prefix of a completion is kept."""

    features: tuple[str, ...]
    """Names of the features, in order."""
    means: tuple[float, ...]
    """Subtracted from each feature."""
    scales: tuple[float, ...]
    """Divides each feature after that."""
    weights: tuple[float, ...]
    """Weight of each scaled feature, in log-odds."""
    bias: float
    """Log-odds where every feature is at its mean."""
    selection: float = 0.0
    """Log-odds added when the best of a completion's prefixes is chosen by these chances: the choice favours prefixes whose
    chance is estimated too high (Smith and Winkler 2006, "The Optimizer's Curse")."""
    cuts: bool = True
    """Whether a text is cut behind the beginning that is worth most; else all of it is shown where a beginning is worth its
    price."""
    languages: dict[str, float] = Field(default={})
    """Log-odds added for a language; 0 for others."""
    temperature: float
    """Sampling temperature of the completions that it was fitted on; it is not valid for others."""
    acceptance: float
    """Accepted share of completions, for users and projects whose share is unknown."""

    @model_validator(mode="after")
    def _complete(self) -> "Estimate":
        if self.features != FEATURES:
            raise ValueError(f"features: expected {', '.join(FEATURES)}, got {', '.join(self.features)}; run a cycle")
        lengths = {len(self.means), len(self.scales), len(self.weights)}
        if lengths != {len(FEATURES)}:
            raise ValueError(f"means, scales, weights: expected {len(FEATURES)} numbers each, got {sorted(lengths)}")
        return self

    def at(self, place: Place, *, chosen: bool = True) -> "ChanceAtPlace":
        """Return the estimate for one request; `chosen`: with the correction for choosing the best prefix."""
        weights = np.array(self.weights) / np.array(self.scales)
        cut = len(TOKEN_FEATURES)
        bias = self.bias - float(weights @ np.array(self.means)) + self.languages.get(place.language, 0.0)
        bias += self.selection if chosen else 0.0
        bias += float(weights[cut:] @ np.array(place_features(place, self.acceptance)))
        return ChanceAtPlace(weights[:cut], bias, self.cuts)


@dataclass(frozen=True)
class ChanceAtPlace:
    """The estimate for one request, to be applied to its tokens."""

    weights: np.ndarray
    """[TOKEN_FEATURES]"""
    bias: float
    cuts: bool
    """As in Estimate."""

    def chances(self, logprobs: Sequence[float], ends: Sequence[int]) -> np.ndarray:
        """Return the expected share of the text up to each token that is kept [T].

        Args:
            logprobs: log-probability of each token [T], in nats.
            ends: characters of the text up to and including each token [T].
        """
        odds = token_features(logprobs, ends) @ self.weights + self.bias
        return 1.0 / (1.0 + np.exp(-np.clip(odds, -500.0, 500.0)))


def token_features(logprobs: Sequence[float], ends: Sequence[int]) -> np.ndarray:
    """Return the features of each token of a completion [T, TOKEN_FEATURES]."""
    single, end = np.minimum(np.asarray(logprobs, float), 0.0), np.asarray(ends, float)
    total, lowest = np.cumsum(single), np.minimum.accumulate(single)
    surprise, worst, last = (np.log(LEAST_SURPRISE - values) for values in (total, lowest, single))
    characters, silent = np.log1p(end), (np.diff(end, prepend=0.0) == 0).astype(float)
    columns = (
        *(surprise, worst, last, np.exp(total), np.exp(lowest)),
        *(characters, np.log1p(np.arange(len(end))), end / CHARACTERS, surprise * characters),
        *(silent, silent * surprise, silent * characters),
    )
    return np.column_stack(columns)


def place_features(place: Place, acceptance: float) -> tuple[float, ...]:
    """Return the features of a request [PLACE_FEATURES]; `acceptance` stands in for an unknown one."""
    prefix, suffix = normal_context(place.prefix, place.suffix)
    before, behind = prefix[prefix.rfind("\n") + 1 :], suffix.partition("\n")[0]
    shares = (acceptance if share is None else share for share in (place.user_acceptance, place.project_acceptance))
    flags = not before.strip(), bool(behind.strip()), bool(WORD_END.search(before))
    return (*map(float, flags), *(log_odds(share) for share in shares))


def log_odds(share: float) -> float:
    """Return the log-odds of a share, which is kept off 0 and 1."""
    bounded = min(max(share, 1e-3), 1.0 - 1e-3)
    return float(np.log(bounded / (1.0 - bounded)))


@dataclass(frozen=True)
class Decision:
    """The part of the tokens so far that is shown."""

    shown: int
    """Number of tokens shown; 0 if no prefix is worth an interruption."""
    sampled: int
    """Number of tokens after which sampling ends; all tokens if it continues."""
    ended: bool
    """More tokens are not worth sampling."""
    chance: float
    """Chance that the shown text is kept; of the best prefix where none is worth showing."""


def worth(chances: np.ndarray, ends: Sequence[int], text: str) -> np.ndarray:
    """Return the characters that are expected to be kept of the text up to each token [T]; the arguments are those of `decide`.

    Blanks at the end of a text are invisible, so they do not count.
    """
    return np.array([len(text[:end].rstrip()) for end in ends], float) * chances


def decide(chances: np.ndarray, ends: Sequence[int], text: str, price: float, max_tokens: int, *, cuts: bool = True) -> Decision:
    """Return the part of a completion to show, from T tokens of at most `max_tokens` so far, independent of how they arrive.

    The prefix with the highest expected value is shown, the shortest of several; without `cuts` all of the text, if a prefix is
    worth an interruption. Sampling ends once no longer prefix can have a higher value: later text is kept only if the text before
    it is kept, so its chance is about that at most. Without `cuts` it ends so only where nothing is shown.

    Args:
        chances: expected share of the text up to each token that is kept [T], T at least 1.
        ends: characters of the text up to each token [T].
        price: price of an interruption, in kept characters.
        cuts: as in Estimate.
    """
    values = worth(chances, ends, text) - price
    left = CHARACTERS_A_TOKEN * (max_tokens - 1.0 - np.arange(len(ends)))
    hoped = chances * (np.asarray(ends, float) + left) - price
    highest = np.maximum.accumulate(values)
    hopeless = hoped <= np.maximum(highest, 0.0) if cuts else np.maximum(hoped, highest) <= 0
    ended = bool(hopeless.any())
    sampled = int(np.argmax(hopeless)) + 1 if ended else len(ends)
    best = int(np.argmax(values[:sampled]))
    if values[best] <= 0:
        return Decision(0, sampled, ended, float(chances[best]))
    last = best if cuts else sampled - 1
    return Decision(last + 1, sampled, ended, float(chances[last]))
