"""Groups that the evaluation's engine draws: cut at the line's end, with the chance of silence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra import settings as settings_
from infra.model.batches import BatchResult
from infra.settings import DEMO
from infra.settings.schema import Sampling
from tasks.evaluation.models.base import Prompt, Text
from tasks.evaluation.models.groups import CHUNK, GroupPrompt, draw_groups

MODEL = settings_.load(DEMO, {}).model
BASE = settings_.path(MODEL.base)


class Engine:
    """Draws a line and the beginning of the next one; of each second draw, the end token."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        text = Text.of(BASE, MODEL)
        self.line, self.end = text.renderer.encode("x = 1\ny"), text.renderer.end

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        self.calls.append(("score", len(rows)))
        assert all(tokens == (self.end,) for _, tokens in rows)
        return [(-0.1 * number,) for number in range(len(rows))]

    def results(self, checkpoint: Path, prompts: Sequence[Prompt], *_: Any, with_logprobs: bool) -> list[BatchResult]:
        self.calls.append(("sample", len(prompts)))
        assert with_logprobs
        assert len({prompt.draw for prompt in prompts}) == len(prompts), "every draw has a seed of its own"
        drawn = [self.line if number % 2 == 0 else [self.end] for number in range(len(prompts))]
        return [BatchResult(row, tuple(ids), tuple(-0.5 - place for place in range(len(ids)))) for row, ids in enumerate(drawn)]


def test_each_place_has_its_draws_up_to_the_end_of_the_line() -> None:
    engine, count = Engine(), CHUNK + 2
    prompts = [GroupPrompt(f"r{number}", f"{number} = ", "\n") for number in range(count)]
    groups = draw_groups(engine, BASE, MODEL, prompts, 4, Sampling(max_tokens=24, temperature=1.0))  # type: ignore[arg-type]
    assert engine.calls == [("score", CHUNK), ("sample", 4 * CHUNK), ("score", 2), ("sample", 8)], (
        "prompts are cached by the score"
    )
    assert len(groups) == count and groups[1].silence == pytest.approx(-0.1) == groups[CHUNK + 1].silence
    text = Text.of(BASE, MODEL)
    for prompt, group in zip(prompts, groups, strict=True):
        assert list(group.prompt) == text.renderer.render(prompt.prefix, prompt.suffix)
        assert [one.text for one in group.completions] == ["x = 1\n", "", "x = 1\n", ""]
        line, silence = group.completions[:2]
        assert silence.tokens == (group.end,) == (engine.end,) and len(line.tokens) == len(line.logprobs) < len(engine.line)
        assert line.logprobs[0] == -0.5 and "\n" in text.tokenizer.decode([line.tokens[-1]])
