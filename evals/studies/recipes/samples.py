"""The recipes that are compared, and the samples that each makes of a cycle's requests, as a cycle makes them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from evals.base_model import tuning, update
from evals.developers import Schedule
from evals.studies.recipes.stream import PROJECT, Request, Stream, open_stream
from infra.model.fim import Renderer
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Reward
from tasks.evaluation.models.base import DrawnGroup
from tasks.evaluation.models.generation import Generator
from tasks.labels import context_lines
from tasks.labels.samples import SettledTokens
from tasks.rewards.reward import DrawnAction
from tasks.rewards.sampled_groups import SettledPlace, draw
from tasks.showing.labels import tokens_of

SPARE = 1.3
"""Rows of the control's pool for each row that is chosen from it."""


@dataclass(frozen=True)
class Recipe:
    """The actions that an update learns from, and the settings of the update."""

    meaning: str
    actions: tuple[Literal["written", "served", "drawn"], ...]  # as train.actions
    training: Mapping[str, Any] = field(default_factory=dict)  # changes of the section train; none: as shipped
    silence: bool = True  # as reward.silence
    developers: bool = True  # else rows of other code, as many as `written` has
    temperature: float | None = None  # of serving; None: that of serving.sampling
    explored: float = 0.0  # share of the requests that are sampled at the exploring temperature
    again: bool = field(default=False, repr=False)  # whether the rows are in another order; `meaning` names it in the digest

    @property
    def update(self) -> dict[str, Any]:
        """The changes of the section train."""
        return {"actions": self.actions, **self.training}


WRITTEN: dict[str, Any] = {"surrogate_weight": 0.0}
SURROGATE: dict[str, Any] = {"surrogate_weight": 1.0, "learning_rate": 1e-4, "final_rate": 1.0}
"""Without written text a higher rate moves the policy far."""
ALL = Recipe("written text, served completions and drawn groups", ("written", "served", "drawn"))
RECIPES: Mapping[str, Recipe] = {
    "written": Recipe("the settled text alone", ("written",), WRITTEN),
    "written_again": Recipe("the settled text alone, its rows in another order", ("written",), WRITTEN, again=True),
    "served": Recipe("served completions alone, by what developers did", ("served",), SURROGATE),
    "drawn": Recipe("groups that nobody saw alone, by the fitted acceptance", ("drawn",), SURROGATE),
    "written_served": Recipe("written text and served completions", ("written", "served")),
    "written_drawn": Recipe("written text and drawn groups", ("written", "drawn")),
    "all": ALL,
    "all_without_silence": replace(ALL, meaning="the same, without silence as an action", silence=False),
    "all_at_0.3": replace(ALL, meaning="the same, served at temperature 0.3", temperature=0.3),
    "all_explored": replace(ALL, meaning="the same, with 10 % of the requests explored", explored=0.1),
    "control": Recipe("as many rows and tokens as `written`, without developers", ("written",), WRITTEN, developers=False),
}


@dataclass(frozen=True)
class Lesson:
    """The requests of one cycle, and the policy that served them."""

    stream: Stream
    schedule: Schedule
    checkpoint: Path
    settings: Settings
    version: str
    seed: int

    @property
    def requests(self) -> Sequence[Request]:
        """The requests, in order of time."""
        return self.stream.requests

    @property
    def most(self) -> int:
        """Maximum tokens of a completion."""
        return self.settings.serving.sampling.max_tokens

    @cached_property
    def renderer(self) -> Renderer:
        """The policy's prompts."""
        return update.renderer_of(self.checkpoint, self.settings.model)

    @cached_property
    def generator(self) -> Generator:
        return Generator(self.checkpoint, self.settings.model)

    def settled_tokens(self) -> Sequence[tuple[int, ...]]:
        """Return the tokens of each request's settled text; empty where hindsight does not know it."""
        tokens = SettledTokens(self.renderer, self.most, self.settings.collect.hindsight.lines)
        return [tuple(tokens.ids(one.settled, one.whole)) for one in self.requests]

    def sample(self, number: int, prompt: Sequence[int], name: str = "", **values: Any) -> Sample:
        """Return a sample of a request."""
        user = self.requests[number].user
        return update.sample(name or str(number), prompt, user=user, policy_version=self.version, **values)


def samples_of(recipe: Recipe, lesson: Lesson) -> list[Sample]:
    """Return the samples that a recipe makes of a cycle's requests."""
    if not recipe.developers:
        return control_samples(lesson)
    written = "written" in recipe.actions
    settled = lesson.settled_tokens() if written else [()] * len(lesson.requests)
    rows = []
    for number, (request, tokens) in enumerate(zip(lesson.requests, settled, strict=True)):
        values = sampled_values(request, recipe)
        if tokens or values:
            prompt = lesson.renderer.render(request.prefix, request.suffix)
            rows.append(lesson.sample(number, prompt, settled_token_ids=tokens, **values))
    standing = context_line_samples(lesson) if written else []
    if recipe.actions == ("written",):
        every = [*rows, *standing]
        return random.Random(lesson.seed).sample(every, len(every)) if recipe.again else every
    drawn = drawn_actions(lesson, recipe) if "drawn" in recipe.actions else ()
    texts = {str(number): one.settled[one.typed :] for number, one in enumerate(lesson.requests) if one.settled is not None}
    return [*update.rewarded(rows, reward_of(lesson, recipe), recipe.actions, drawn, texts), *standing]


def reward_of(lesson: Lesson, recipe: Recipe) -> Reward:
    return lesson.settings.reward.model_copy(update={"silence": recipe.silence})


def sampled_values(request: Request, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a served completion; none where it has no reward.

    A completion that nobody judged has one beside the settled text alone: its kept share.
    """
    judged, kept = request.outcome != "unjudged", request.kept
    known = judged or ("written" in recipe.actions and None not in (request.settled, kept))
    if "served" not in recipe.actions or not known or (request.outcome == "nothing" and not recipe.silence):
        return {}
    tokens = tokens_shown(request) if judged else len(request.tokens)
    shown = len((request.shown if judged else request.text).rstrip())
    return {
        "token_ids": request.tokens[:tokens],
        "logprobs": request.logprobs[:tokens],
        "temperature": request.temperature,
        "outcome": request.outcome,
        "shown_characters": shown,
        "accepted_characters": shown * (request.outcome == "accepted"),
        "kept_characters": kept,
    }


def tokens_shown(request: Request) -> int:
    """Return the number of sampled tokens whose text was shown; all, with the end token, where the text was shown to its end."""
    end = request.extent
    if not request.shown or not request.shown.strip() or end < len(request.shown) or end >= len(request.text.rstrip()):
        return len(request.tokens) if request.served == len(request.tokens) or not request.shown else request.served
    return tokens_of(request.ends, end)


def context_line_samples(lesson: Lesson) -> list[Sample]:
    """Return the context lines of the requests."""
    written, seen, rows = SettledTokens(lesson.renderer, lesson.most), set[int](), []
    for number, request in enumerate(lesson.requests):
        cursors = context_lines.pick(context_lines.offered(request.prefix), context_lines.LINES, seen)
        for line, (before, rest, after) in enumerate(context_lines.places(request.prefix, request.suffix, cursors), 1):
            values = {"settled_token_ids": tuple(written.ids(rest, True)), "outcome": "standing"}
            rows.append(lesson.sample(number, lesson.renderer.render(before, after), f"{number}/{line}", **values))
    return rows


def control_samples(lesson: Lesson) -> list[Sample]:
    """Return rows of the base's training sources that did not tune it: as many rows and tokens as `written` has."""
    wanted = samples_of(RECIPES["written"], lesson)
    schedule = Schedule(tuning.USERS, lesson.seed, tuning.sources(0)[1])
    pool: list[Sample] = []
    count = len(lesson.requests)
    while len(pool) < SPARE * len(wanted):
        other = replace(lesson, stream=open_stream(schedule, 0, count, None, lesson.settings, lesson.seed))
        pool = samples_of(RECIPES["written"], other)
        count += len(lesson.requests) // 4 + 1
    return matched(pool, [len(sample.settled_token_ids) for sample in wanted])


def matched(pool: Sequence[Sample], lengths: Sequence[int]) -> list[Sample]:
    """Return a sample of the pool for each length of settled text, of that length or, if it has no more, of the nearest."""
    by_length: dict[int, list[Sample]] = {}
    for sample in reversed(pool):
        by_length.setdefault(len(sample.settled_token_ids), []).append(sample)
    chosen = []
    for length in lengths:
        nearest = min(by_length, key=lambda there: (abs(there - length), there))
        chosen.append(by_length[nearest].pop())
        if not by_length[nearest]:
            del by_length[nearest]
    return chosen


def drawn_actions(lesson: Lesson, recipe: Recipe) -> Sequence[DrawnAction]:
    """Return the actions of groups as a cycle draws them, at places whose settled text is known.

    Raises ValueError where there are no groups.
    """
    places = [place_of(number, one) for number, one in enumerate(lesson.requests) if one.settled is not None]
    wanted = lesson.settings.train.groups

    def sampler(asked: Sequence[SettledPlace]) -> Sequence[DrawnGroup]:
        contexts = [(place.prefix, place.suffix) for place in asked]
        return lesson.generator.groups(contexts, wanted.size, lesson.most, wanted.temperature, lesson.seed)

    found = draw(places, lesson.version, sampler, wanted, reward_of(lesson, recipe))
    if found.reason:
        raise ValueError(f"--interactions: no groups, since {found.reason}; ask for more")
    return found.actions


def place_of(number: int, request: Request) -> SettledPlace:
    """Return a place whose settled text is known."""
    return SettledPlace(
        id=str(number),
        project=PROJECT,
        user=request.user,
        credential="",
        prefix=request.prefix,
        suffix=request.suffix,
        settled=request.settled or "",
        whole=request.whole,
        shown=request.shown,
        accepted=request.verdict,
        typed=request.typed,
    )
