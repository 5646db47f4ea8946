"""The recipes that are compared, and the samples that each makes of the developers' pauses, as a cycle makes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from evals.base_model import tuning, update
from evals.developers import Pause, Schedule
from evals.studies.judged import cycles
from evals.studies.recipes.stream import PROJECT, Label, mined
from infra.model.fim import Renderer, code_encoder
from infra.model.kept_text import kept_characters
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Groups, Reward
from serving.slots.policy import EXPLORING_TEMPERATURE
from tasks.evaluation.judge import ReferenceJudge
from tasks.evaluation.models.base import DrawnGroup, SampledCompletion
from tasks.evaluation.models.generation import Generator
from tasks.labels import context_lines
from tasks.labels.samples import SettledTokens
from tasks.rewards.reward import DrawnAction
from tasks.rewards.sampled_groups import SettledPlace, draw

GROUP_SIZE = 8
SPARE = 1.3
"""Rows of the control's pool for each row that is chosen from it."""
RLINF_TEMPERATURE = 0.1
RLINF_REWARD = Reward(accepted=1.0, rejected=0.0)
"""Silence, with the reward 0, is the only other action of a place: theirs has no baseline."""


@dataclass(frozen=True)
class Interactions:
    """The pauses of one update, and the policy that the developers meet."""

    schedule: Schedule
    first: int  # number of their first pause
    count: int
    checkpoint: Path
    settings: Settings
    version: str
    seed: int

    @cached_property
    def pauses(self) -> Sequence[Pause]:
        """The pauses, in the order of the sessions."""
        return [self.schedule.first_pause(number) for number in range(self.first, self.first + self.count)]

    @cached_property
    def labels(self) -> Mapping[int, Label]:
        """The settled texts that later requests show, by the pause's index in `pauses`."""
        most = self.settings.serving.sampling.max_tokens
        return mined(self.schedule, self.first, self.count, self.settings.collect.hindsight, most)

    @cached_property
    def renderer(self) -> Renderer:
        """The policy's prompts."""
        return update.renderer_of(self.checkpoint, self.settings.model)

    @cached_property
    def generator(self) -> Generator:
        """The policy."""
        return Generator(self.checkpoint, self.settings.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The policy's tokenizer."""
        return Tokenizer.from_file(str(self.checkpoint / "tokenizer.json"))

    def complete(self, temperature: float) -> list[SampledCompletion]:
        """Sample a completion at each pause."""
        return self.sampled([(pause.prefix, pause.suffix) for pause in self.pauses], temperature)

    def sampled(self, contexts: Sequence[tuple[str, str]], temperature: float) -> list[SampledCompletion]:
        """Sample a completion of each (prefix, suffix)."""
        return self.generator.sample(contexts, self.settings.serving.sampling.max_tokens, temperature, self.seed)

    def settled_tokens(self) -> Sequence[tuple[int, ...]]:
        """Return the tokens of each pause's settled text; empty where hindsight does not know it."""
        most, lines = self.settings.serving.sampling.max_tokens, self.settings.collect.hindsight.lines
        tokens, labels = SettledTokens(self.renderer, most, lines), map(self.labels.get, range(self.count))
        return [tuple(tokens.ids(label.text, label.whole)) if label else () for label in labels]

    def sample(self, number: int, prompt: Sequence[int], name: str = "", **values: Any) -> Sample:
        """Return a sample of a pause."""
        user = self.pauses[number].developer.name
        return update.sample(name or str(number), prompt, user=user, policy_version=self.version, **values)


def settled_samples(given: Interactions, every: int = 1) -> list[Sample]:
    """Return the settled text of every `every`-th pause, and its context lines; nothing is shown."""
    numbers, tokens = range(0, given.count, every), given.settled_tokens()
    settled = [(number, given.pauses[number]) for number in numbers if tokens[number]]
    samples = [given.sample(n, given.renderer.render(p.prefix, p.suffix), settled_token_ids=tokens[n]) for n, p in settled]
    return [*samples, *context_line_samples(given, numbers)]


def context_line_samples(given: Interactions, numbers: Sequence[int]) -> list[Sample]:
    """Return the context lines of some pauses."""
    written, seen, rows = SettledTokens(given.renderer, given.settings.serving.sampling.max_tokens), set[bytes](), []
    for number in numbers:
        pause = given.pauses[number]
        cursors = context_lines.pick(pause.prefix, context_lines.LINES, seen)
        for line, (before, rest, after) in enumerate(context_lines.places(pause.prefix, pause.suffix, cursors), 1):
            values = {"settled_token_ids": tuple(written.ids(rest, True)), "outcome": "standing"}
            rows.append(given.sample(number, given.renderer.render(before, after), f"{number}/{line}", **values))
    return rows


def control_samples(given: Interactions) -> list[Sample]:
    """Return as many rows, with as many tokens, of other code: the base's training sources that it was not tuned to."""
    wanted = settled_samples(given)
    schedule = Schedule(tuning.USERS, given.seed, tuning.sources(0)[1])
    pool: list[Sample] = []
    count = given.count
    while len(pool) < SPARE * len(wanted):
        pool = settled_samples(replace(given, schedule=schedule, first=0, count=count))
        count += given.count // 4 + 1
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


def shown_samples(given: Interactions, temperature: float, settled: bool) -> list[Sample]:
    """Return the shown completions with rewards, and with `settled` the settled texts as well.

    A silent or superseded completion, or one that the developer typed over, has no reward; only its settled text counts. A late
    accept is an accept: the join waits for it.
    """
    completions = given.complete(temperature)
    samples = [shown_sample(given, number, completion, temperature) for number, completion in enumerate(completions)]
    if not settled:
        return update.rewarded([sample for sample in samples if sample.outcome != "unjudged"], given.settings.reward)
    both = []
    for number, (sample, tokens) in enumerate(zip(samples, given.settled_tokens(), strict=True)):
        known = kept(given, number, sample, completions[number].text)
        # Without an answer, and without kept characters, the sampled tokens have no reward.
        unrewarded = {"token_ids": (), "logprobs": ()} if sample.outcome == "unjudged" and known is None else {}
        if tokens or (sample.token_ids and not unrewarded):
            both.append(sample.model_copy(update={"settled_token_ids": tokens, "kept_characters": known, **unrewarded}))
    return [*update.rewarded(both, given.settings.reward), *context_line_samples(given, range(given.count))]


def kept(given: Interactions, number: int, sample: Sample, generated: str) -> int | None:
    """Return the number of shown characters (without an answer: of generated ones) in the settled text; None: unknown."""
    label = given.labels.get(number)
    if label is None:
        return None
    shown = generated if sample.outcome == "unjudged" else given.pauses[number].answer(generated)[0].shown
    return kept_characters(shown, label.text)


def rlinf_samples(given: Interactions) -> list[Sample]:
    """Return samples as RLinf's online example makes them: the shown text, tokenised again and scored by the current weights."""
    completions = given.complete(RLINF_TEMPERATURE)
    answered = [n for n, c in enumerate(completions) if shown_sample(given, n, c, 1.0).outcome in ("accepted", "rejected")]
    shown = [given.pauses[n].answer(completions[n].text)[0].shown for n in answered]
    tokens = [code_encoder(given.tokenizer).encode(text, add_special_tokens=False).ids for text in shown]
    scores = given.generator.score([(completions[n].prompt, ids) for n, ids in zip(answered, tokens, strict=True)])
    samples = [
        shown_sample(given, n, replace(completions[n], tokens=tuple(ids), logprobs=tuple(logprobs)), 1.0)
        for n, ids, logprobs in zip(answered, tokens, scores, strict=True)
    ]
    return update.rewarded(samples, RLINF_REWARD)


def drawn_actions(given: Interactions, shown: Sequence[Sample]) -> Sequence[DrawnAction]:
    """Return the actions of groups as a cycle draws them, at the positions of shown completions.

    Raises ValueError where there are no groups.
    """
    settings, completions, places = given.settings, {sample.completion_id: sample for sample in shown}, []
    for number, label in given.labels.items():
        pause, sample = given.pauses[number], completions.get(str(number))
        generated = given.tokenizer.decode(sample.token_ids) if sample else ""
        place = SettledPlace(
            id=str(number),
            project=PROJECT,
            user=pause.developer.name,
            credential="",
            prefix=pause.prefix,
            suffix=pause.suffix,
            settled=label.text,
            whole=label.whole,
            shown=pause.answer(generated)[0].shown,
            accepted={"accepted": True, "rejected": False}.get(sample.outcome) if sample else None,
        )
        places.append(place)
    wanted = Groups(places=given.count // GROUP_SIZE, size=GROUP_SIZE, temperature=EXPLORING_TEMPERATURE)

    def sampler(asked: Sequence[SettledPlace]) -> Sequence[DrawnGroup]:
        contexts = [(place.prefix, place.suffix) for place in asked]
        most = settings.serving.sampling.max_tokens
        return given.generator.groups(contexts, wanted.size, most, wanted.temperature, given.seed)

    found = draw(places, given.version, sampler, wanted, settings.reward)
    if found.reason:
        raise ValueError(f"--interactions: no groups, since {found.reason}; ask for more")
    return found.actions


def judge_groups(given: Interactions) -> list[Sample]:
    """Return GRPO's samples: a group at every 8th pause, scored without a developer. As many samples as pauses."""
    positions = [pause.position for pause in given.pauses[::GROUP_SIZE]]
    judge, generator = ReferenceJudge(), given.generator
    made = cycles.sample_groups(generator, judge, positions, GROUP_SIZE, given.settings, given.seed, version=given.version)
    return list(made.samples)


def shown_sample(given: Interactions, number: int, completion: SampledCompletion, temperature: float) -> Sample:
    """Return a completion with its developer's answer."""
    pause = given.pauses[number]
    outcome, choice = pause.answer(completion.text)
    typed = pause.position.truth[: pause.draws.typed] if pause.draws.types_on else ""
    if pause.developer.silent or pause.draws.superseded or not completion.text.startswith(typed):
        answer = "unjudged"
    else:
        answer = "nothing" if choice is None else "accepted" if choice.accepted else "rejected"
    shown = len(completion.text if answer == "unjudged" else outcome.shown)
    return given.sample(
        number,
        completion.prompt,
        token_ids=completion.tokens,
        logprobs=tuple(min(value, 0.0) for value in completion.logprobs),
        temperature=temperature,
        outcome=answer,
        shown_characters=shown,
        accepted_characters=shown * (answer == "accepted"),
    )


@dataclass(frozen=True)
class Recipe:
    """How a recipe makes samples of interactions, and the settings of its update."""

    meaning: str
    samples: Callable[[Interactions], list[Sample]]
    training: Mapping[str, Any]


SURROGATE: dict[str, Any] = {
    **{"actions": ("served", "drawn"), "surrogate_weight": 1.0, "proximal": "step"},
    **{"learning_rate": 4e-4, "final_rate": 1.0},
}
SERVED_SURROGATE = SURROGATE | {"learning_rate": 1e-4}
"""At a low temperature the same rate moves the policy further."""
PLAIN_PPO = SURROGATE | {"clip_low": 0.2, "clip_high": 0.2, "frozen_layers": 0}
SETTLED: dict[str, Any] = {"actions": ("written",), "surrogate_weight": 0.0}
BOTH: dict[str, Any] = {"actions": ("written", "served", "drawn"), "surrogate_weight": 0.1}


def as_served(given: Interactions, settled: bool = False) -> list[Sample]:
    """Return the samples of completions at the serving temperature."""
    return shown_samples(given, given.settings.serving.sampling.temperature, settled)


def with_groups(given: Interactions) -> list[Sample]:
    """Return the samples of `both`, and of groups that the policy draws at the settled positions."""
    shown = as_served(given, True)
    own = [sample for sample in shown if sample.outcome != "standing"]
    others = [sample for sample in shown if sample.outcome == "standing"]
    return [*update.rewarded(own, given.settings.reward, drawn=drawn_actions(given, own)), *others]


def silent_samples(given: Interactions) -> list[Sample]:
    """Return the samples of a team whose editors send requests only."""
    schedule = given.schedule.with_quirks(replace(given.schedule.quirks, silent_editors=1.0))
    return settled_samples(replace(given, schedule=schedule))


RECIPES: Mapping[str, Recipe] = {
    "settled": Recipe("the settled text alone, as shipped", settled_samples, SETTLED),
    "control": Recipe("as many rows and tokens without developers", control_samples, SETTLED),
    "both": Recipe("settled text and accepts, sampled as served", lambda given: as_served(given, True), BOTH),
    "both_groups": Recipe("the same, and groups that nobody saw, scored by the settled text", with_groups, BOTH),
    "settled_third": Recipe("the settled text of every third pause", lambda given: settled_samples(given, 3), SETTLED),
    "silent": Recipe("the settled text alone, of a team whose editors report nothing", silent_samples, SETTLED),
    "accepts": Recipe("accepts and rejections alone, sampled as served", as_served, SERVED_SURROGATE),
    "ppo": Recipe(
        "the same, explored at a high temperature", lambda given: shown_samples(given, EXPLORING_TEMPERATURE, False), SURROGATE
    ),
    "rlinf": Recipe("RLinf's online example", rlinf_samples, PLAIN_PPO),
    "group": Recipe("GRPO with a judge instead of developers", judge_groups, SURROGATE),
}
