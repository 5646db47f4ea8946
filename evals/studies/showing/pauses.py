"""Pauses of simulated developers with a completion each, their labels and the decisions on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from evals.developers import Pause
from evals.studies.showing.frontier import TokenOutcomes
from infra.model.past_acceptance import PastAcceptance
from infra.model.showing import Decision, Place, decide
from tasks.evaluation.models.generation import SampledCompletion
from tasks.showing.labels import LabelledCompletion, kept_up_to

TAUGHT = ("typed", "accepted", "rewritten")
"""Kinds of text that is a label; a paste and an unfinished line have no label."""
PROJECT = "bench"


@dataclass(frozen=True, eq=False)
class CompletedPauses:
    """Pauses with a completion each, in order of time."""

    pauses: Sequence[Pause]
    texts: Sequence[str]
    completions: Sequence[LabelledCompletion]

    def __getitem__(self, part: slice) -> "CompletedPauses":
        return CompletedPauses(self.pauses[part], self.texts[part], self.completions[part])

    def outcomes(self) -> TokenOutcomes:
        """Return what the developers do when they are shown the text up to each token."""
        columns = []
        for pause, text, completion in zip(self.pauses, self.texts, self.completions, strict=True):
            judged = [pause.answer(text[:end])[0] for end in completion.ends]
            columns.append(np.array([(o.accepted, o.kept_characters, bool(o.shown)) for o in judged], float))
        return TokenOutcomes([pause.developer.name for pause in self.pauses], columns)


def completed(
    pauses: Sequence[Pause], sampled: Sequence[SampledCompletion], tokenizer: Tokenizer, temperature: float
) -> CompletedPauses:
    """Return pauses, in order of time, with the completions that were sampled there at a temperature."""
    past, texts, completions = PastAcceptance(), [], []
    for pause, completion in zip(pauses, sampled, strict=True):
        text, ends = decoded(tokenizer, completion)
        texts.append(text)
        completions.append(labelled(pause, completion, (text, ends), past, temperature))
    return CompletedPauses(pauses, texts, completions)


def decoded(tokenizer: Tokenizer, completion: SampledCompletion) -> tuple[str, list[int]]:
    """Return the text of a completion, and its length up to each token, as serving records it."""
    stream, text, ends = DecodeStream(skip_special_tokens=True), "", []
    for token in completion.tokens:
        text += stream.step(tokenizer, token) or ""
        ends.append(len(text))
    return text, ends


def labelled(
    pause: Pause, completion: SampledCompletion, decoded: tuple[str, list[int]], past: PastAcceptance, temperature: float
) -> LabelledCompletion:
    """Return a completion with its labels, and count what the developer did with all of it in `past`."""
    (text, ends), developer = decoded, pause.developer
    place = Place(pause.prefix, pause.suffix, "", *past.shares(PROJECT, developer.name))
    choice = None if developer.silent else pause.answer(text)[1]
    if choice:
        past.add(PROJECT, developer.name, choice.accepted)
    truth, kept = pause.settled, np.full(len(ends), np.nan)
    if truth and truth.text and truth.kind in TAUGHT:
        kept = kept_up_to(text, ends, truth.text, truth.whole)
    return LabelledCompletion(place, temperature, completion.logprobs, ends, kept, choice.accepted if choice else None)


def decisions(chances: Sequence[np.ndarray], places: CompletedPauses, price: float, max_tokens: int) -> list[Decision]:
    """Return the decision on each completion at a price, by the chances of its beginnings [T] each."""
    completions = zip(chances, places.completions, places.texts, strict=True)
    return [decide(own, c.ends, text, price, max_tokens) for own, c, text in completions]
