"""Groups of completions by the evaluation's engine: several of each prompt, for an update that draws its own actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.settings.schema import Model, Sampling
from tasks.evaluation.models.base import DrawnGroup, Prompt, SampledCompletion, Text, draw_of
from tasks.evaluation.models.engine import EngineModels

CHUNK = 64
"""Prompts whose groups are drawn together, after the score of their silence has put them into the engine's prefix cache."""


@dataclass(frozen=True)
class GroupPrompt:
    """A place at which a group is drawn."""

    name: str
    """It seeds the draws."""
    prefix: str
    suffix: str


def draw_groups(
    models: EngineModels, checkpoint: Path, model: Model, prompts: Sequence[GroupPrompt], size: int, sampling: Sampling
) -> list[DrawnGroup]:
    """Return `size` completions of each prompt, each up to a token with a newline, and the chance of silence there.

    Raises:
        EngineAway: the engine does not answer.
        EngineRefused: the checkpoint does not fit, or a prompt is too long.
    """
    text = Text.of(checkpoint, model)
    groups: list[DrawnGroup] = []
    for start in range(0, len(prompts), CHUNK):
        some = prompts[start : start + CHUNK]
        tokens = [text.renderer.render(prompt.prefix, prompt.suffix) for prompt in some]
        silence = models.score(checkpoint, [(ids, (text.renderer.end,)) for ids in tokens])
        named = zip(some, tokens, strict=True)
        rows = [Prompt(ids, draw_of(copy, prompt.name)) for prompt, ids in named for copy in range(size)]
        drawn = models.results(checkpoint, rows, sampling, text.ends, lambda _: None, with_logprobs=True)
        made = [_completion(text, row.tokens, one.tokens, one.logprobs) for row, one in zip(rows, drawn, strict=True)]
        for number, (ids, quiet) in enumerate(zip(tokens, silence, strict=True)):
            own = tuple(made[number * size : (number + 1) * size])
            groups.append(DrawnGroup(tuple(ids), own, text.renderer.end, quiet[0]))
    return groups


def _completion(text: Text, prompt: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> SampledCompletion:
    """Return a completion cut behind its first token with a newline: what follows was drawn after its end."""
    breaks = (place for place, token in enumerate(tokens, 1) if "\n" in text.served([token], ()))
    end = next(breaks, len(tokens))
    kept = tuple(tokens[:end])
    return SampledCompletion(tuple(prompt), kept, tuple(logprobs[:end]), text.served(kept, ()))
