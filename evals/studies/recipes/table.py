"""The recipes that are compared: how each makes samples, and where its update differs from the settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evals.studies.recipes.samples import (
    Interactions,
    control_samples,
    drawn_samples,
    judge_groups,
    rlinf_samples,
    settled_samples,
    shown_samples,
)
from infra.records import Sample


@dataclass(frozen=True)
class Recipe:
    """How a recipe makes samples of interactions, and where its update differs from the settings."""

    meaning: str
    samples: Callable[[Interactions], list[Sample]]
    training: Mapping[str, Any]


SURROGATE: dict[str, Any] = {"surrogate_weight": 1.0, "learning_rate": 4e-4, "final_rate": 1.0}
SERVED_SURROGATE = SURROGATE | {"learning_rate": 1e-4}
"""At a low temperature the same rate moves the policy further."""
PLAIN_PPO = SURROGATE | {"clip_low": 0.2, "clip_high": 0.2, "frozen_layers": 0}
SETTLED: dict[str, Any] = {"surrogate_weight": 0.0}
BOTH: dict[str, Any] = {"surrogate_weight": 0.1}


def as_served(given: Interactions, settled: bool) -> list[Sample]:
    """Return what was shown, sampled at the temperature that people are served at."""
    return shown_samples(given, given.settings.serving.sampling.temperature, settled)


def explored(given: Interactions, settled: bool) -> list[Sample]:
    """Return what was shown, sampled at the exploring temperature."""
    return shown_samples(given, given.settings.serving.sampling.exploring_temperature, settled)


def with_groups(given: Interactions) -> list[Sample]:
    """Return the samples of `both`, and of groups that the policy draws at the settled places."""
    shown = as_served(given, True)
    return [*shown, *drawn_samples(given, shown)]


def silent_samples(given: Interactions) -> list[Sample]:
    """Return what is learnt of a team whose editors send requests and nothing else."""
    schedule = given.schedule.with_quirks(replace(given.schedule.quirks, silent_editors=1.0))
    return settled_samples(replace(given, schedule=schedule))


RECIPES: Mapping[str, Recipe] = {
    "settled": Recipe("the settled text alone, as shipped", settled_samples, SETTLED),
    "control": Recipe("as many rows and tokens without developers", control_samples, SETTLED),
    "both": Recipe("settled text and accepts, sampled as served", lambda given: as_served(given, True), BOTH),
    "both_groups": Recipe("the same, and groups that nobody saw, scored by the settled text", with_groups, BOTH),
    "settled_third": Recipe("the settled text of every third place", lambda given: settled_samples(given, 3), SETTLED),
    "silent": Recipe("the settled text alone, of a team whose editors report nothing", silent_samples, SETTLED),
    "accepts": Recipe("accepts and rejections alone, sampled as served", lambda given: as_served(given, False), SERVED_SURROGATE),
    "ppo": Recipe("the same, explored at a high temperature", lambda given: explored(given, False), SURROGATE),
    "rlinf": Recipe("RLinf's online example", rlinf_samples, PLAIN_PPO),
    "group": Recipe("GRPO with a judge instead of developers", judge_groups, SURROGATE),
}
