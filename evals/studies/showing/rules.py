"""Completions at the pauses of simulated developers, and what rules of showing are worth there, per request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from evals.bench.figures import Figure, bound, figure
from evals.compare import gains
from evals.compare.gains import Sums
from evals.developers import Pause
from infra.model.past_acceptance import PastAcceptance
from infra.model.showing import Decision, Estimate, Place, decide
from infra.model.time_saved import HOUR, KEY_SECONDS
from infra.records import ShowLevel
from tasks.evaluation.models.base import SampledCompletion
from tasks.showing.labels import Compared, LabelledCompletion, kept_up_to
from tasks.statistics.ratios import margin

Metric = Literal["accepted", "kept", "shown"]
NAMES: dict[Metric, str] = {"accepted": "accepted", "kept": "kept characters", "shown": "shown"}
OUTCOMES = (*NAMES, "edit", "reading", "saved")
"""Outcomes of a shown text beside: characters of its correction, and seconds of reading and saved (infra/model/time_saved.py)."""
Shown = Sequence[int]
"""For each completion the number of tokens shown."""
TARGETS: dict[tuple[ShowLevel, str], dict[str, float]] = {
    ("eager", "accepted"): {"least": -5.0},
    ("eager", "kept characters"): {"least": -10.0},
    ("eager", "time saved"): {"least": 0.0},
    ("balanced", "time saved"): {"least": 5.0},
    ("quiet", "time saved"): {"least": 10.0},
    ("quiet", "shown"): {"most": -21.0},
}
"""In percent of showing all; the time saved in seconds an hour of writing above it."""
LEAST: dict[Metric, dict[str, float]] = {"accepted": {}, "kept": {"least": -3.0}}
"""By which the frontier may be below a plain rule, in percent: the decision is by what is kept."""
TAUGHT = ("typed", "accepted", "rewritten")
"""Kinds of text that is a label; a paste and an unfinished line have no label."""
PROJECT = "bench"


@dataclass(frozen=True, eq=False)
class TokenOutcomes:
    """Outcomes of the beginnings of completions."""

    users: Sequence[str]  # by completion
    values: Sequence[np.ndarray]  # by completion, the expected outcome if the text up to each token is shown [T, OUTCOMES]
    written: Sequence[int]  # by completion, keys of the lines that the developer writes at its place

    def of(self, shown: Shown) -> Sums:
        """Return the sums by user of OUTCOMES and `written`, if so many tokens of each completion are shown."""
        nothing, chosen = np.zeros(len(OUTCOMES)), zip(self.values, shown, strict=True)
        columns = np.array([values[count - 1] if count else nothing for values, count in chosen]).T
        return gains.by_user(self.users, dict(zip(OUTCOMES, columns, strict=True)) | {"written": self.written})


@dataclass(frozen=True, eq=False)
class CompletedPauses:
    """Pauses with a completion each, in order of time."""

    pauses: Sequence[Pause]
    completions: Sequence[LabelledCompletion]

    def __getitem__(self, part: slice) -> "CompletedPauses":
        return CompletedPauses(self.pauses[part], self.completions[part])

    @property
    def everything(self) -> Shown:
        """All tokens of each completion."""
        return [len(completion.ends) for completion in self.completions]

    def outcomes(self) -> TokenOutcomes:
        """Return what the developers do when they are shown the text up to each token."""
        columns = []
        for pause, completion in zip(self.pauses, self.completions, strict=True):
            judged = [pause.answer(completion.text[:end])[0] for end in completion.ends]
            rows = [(o.accepted, o.kept_characters, bool(o.shown), o.edit_characters, o.reading, o.saved_seconds) for o in judged]
            columns.append(np.array(rows, float))
        return TokenOutcomes([pause.developer.name for pause in self.pauses], columns, [pause.keys for pause in self.pauses])

    def decisions(self, estimate: Estimate, price: float, max_tokens: int) -> list[Decision]:
        """Return the decision on each completion at a price."""
        made = []
        for c in self.completions:
            chances = estimate.at(c.place).chances(c.logprobs, c.ends)
            made.append(decide(chances, c.ends, c.text, price, max_tokens, cuts=estimate.cuts))
        return made


def completed(
    pauses: Sequence[Pause], sampled: Sequence[SampledCompletion], tokenizer: Tokenizer, temperature: float
) -> CompletedPauses:
    """Return pauses, in order of time, with the completions that were sampled there at a temperature."""
    past, completions = PastAcceptance(), []
    for pause, completion in zip(pauses, sampled, strict=True):
        text, ends = decoded(completion, tokenizer)
        completions.append(labelled(pause, completion, text, ends, past, temperature))
    return CompletedPauses(pauses, completions)


def decoded(completion: SampledCompletion, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Return the text of a completion, and its characters up to each token, as serving records them."""
    stream, text, ends = DecodeStream(skip_special_tokens=True), "", list[int]()
    for token in completion.tokens:
        text += stream.step(tokenizer, token) or ""
        ends.append(len(text))
    return text, ends


def labelled(
    pause: Pause, completion: SampledCompletion, text: str, ends: Sequence[int], past: PastAcceptance, temperature: float
) -> LabelledCompletion:
    """Return a completion with its labels, and count what the developer did with all of it in `past`.

    An accepted text that stands in place of the one in mind is the settled text, as in the file that a cycle reads.
    """
    developer, truth, kept = pause.developer, pause.settled, np.full(len(ends), np.nan)
    place = Place(pause.prefix, pause.suffix, "", *past.shares(PROJECT, developer.name))
    outcome, answer = pause.answer(text)
    choice = None if developer.silent else answer
    if choice:
        past.add(PROJECT, developer.name, choice.accepted)
    compared, accepted = None, choice.accepted if choice else None
    if truth and truth.text and truth.kind in TAUGHT:
        stood = truth.text
        if answer and answer.accepted and answer.opinion.stands:
            stood = outcome.shown + truth.text[answer.opinion.covered :]
        kept = kept_up_to(text, ends, stood, truth.whole)
        compared = Compared(stood, text, accepted)
    return LabelledCompletion(place, temperature, text, completion.logprobs, ends, kept, accepted, compared=compared)


def gain(own: Sums, other: Sums, metric: Metric, base: Sums) -> tuple[float, float]:
    """Return by how much a rule is above another per request, in percent of `base`, and half its interval's width."""
    value, width = gains.gain(other.per(metric), own.per(metric))
    return 100 * value / base.mean(metric), 100 * width / base.mean(metric)


def gain_per_shown(own: Sums, base: Sums) -> tuple[float, float]:
    """Return by how much more is accepted per impression, in percent, and half its interval's width (delta method)."""
    quotient = (own.mean("accepted") / own.mean("shown")) / (base.mean("accepted") / base.mean("shown"))
    influence = own.share("accepted") - own.share("shown") - base.share("accepted") + base.share("shown")
    return 100 * (quotient - 1), 100 * margin(quotient * influence)


def time_saved(own: Sums, base: Sums) -> tuple[float, float]:
    """Return how many seconds more are saved per hour of writing, and half its interval's width."""
    value, width = gains.gain(base.per("saved", "written"), own.per("saved", "written"))
    return HOUR / KEY_SECONDS * value, HOUR / KEY_SECONDS * width


def level_figures(level: ShowLevel, own: Sums, base: Sums) -> list[Figure]:
    """Return the gains of a level over showing all."""
    cells = {name: gain(own, base, metric, base) for metric, name in NAMES.items()}
    cells["accepted per shown"] = gain_per_shown(own, base)
    cells["time saved"] = time_saved(own, base)
    rows = []
    for name, (value, width) in cells.items():
        unit = "s per hour of writing" if name == "time saved" else "%"
        rows.append(figure(f"{level}: {name}", value, unit, **TARGETS.get((level, name), {})))
        rows.append(figure(f"{level}: {name}, half of the interval", width, unit))
    return rows


def comparison(rule: str, thresholds: Sequence[float], theirs: Sequence[Sums], ours: Sequence[Sums], base: Sums) -> list[Figure]:
    """Return by how much the frontier lies above a plain rule, at each of its thresholds.

    Compared is the price at which as much is shown as by the rule, or less: of those the one that shows most.
    """
    rows = []
    both: tuple[Metric, Metric] = ("accepted", "kept")
    for threshold, plain in zip(thresholds, theirs, strict=True):
        fitting = [own for own in ours if own.mean("shown") <= plain.mean("shown") + 1e-9]
        own = max(fitting, key=lambda sums: sums.mean("shown"))
        name = f"{rule} below {threshold:g}"
        rows.append(figure(f"{name}: shown", gain(plain, base, "shown", base)[0], "%"))
        rows.append(figure(f"{name}: the frontier's shown", gain(own, base, "shown", base)[0], "%"))
        for metric in both:
            value, width = gain(own, plain, metric, base)
            above = f"{name}: the frontier above it, {NAMES[metric]}"
            rows.append(figure(f"{name}: {NAMES[metric]}", gain(plain, base, metric, base)[0], "%"))
            rows += [figure(above, value, "%"), bound(f"{above}, low", value - width, "%", **LEAST[metric])]
    return rows
