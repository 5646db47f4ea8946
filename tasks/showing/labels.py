"""The labels of the keep estimate (infra/model/showing.py): how much of a completion was kept, up to each of its tokens.

Where the settled text of a completion is known, every beginning has a label, shown or not. It is the chance that a developer
accepts it, which is fitted on the cycle's verdicts as for drawn texts (tasks/rewards/acceptance.py), times the share of its
characters that stand in the settled text. So a text that is accepted and then corrected counts by what stays of it. Where no
acceptance can be fitted, a beginning is kept if the settled text begins with it. Where only the developer's answer is known, the
shown text has a label: it is kept if it was accepted in whole, or so far as it still stands where its place shows that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from infra.model.kept_text import kept_characters
from infra.model.line_ends import normal_context
from infra.model.showing import Place
from infra.storage.store import ObjectStore
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition, divided
from tasks.labels.read import read_chosen
from tasks.rewards import acceptance
from tasks.rewards.acceptance import Acceptance

JUDGED = {"accepted": 1.0, "rejected": 0.0}
"""Labels of outcomes; a partial accept is no label of the whole shown text."""


@dataclass(frozen=True)
class Compared:
    """The texts of a completion whose settled text is known."""

    settled: str
    shown: str
    """The part that the developer saw."""
    verdict: bool | None = None
    """Whether the developer accepted that part; None where that is no verdict to fit on (acceptance.verdict_on)."""
    typed: int = 0
    """Characters of the settled text that the developer typed before that part was shown."""
    judge: Mapping[str, str] = field(default_factory=dict)
    """Whose verdict it is: user, credential and project."""


@dataclass(frozen=True, eq=False)
class LabelledCompletion:
    """A completion of T tokens with the label of each beginning."""

    place: Place
    temperature: float
    text: str
    """All of it, shown or not."""
    logprobs: Sequence[float]
    """[T]"""
    ends: Sequence[int]
    """Characters of the text up to each token [T]."""
    kept: np.ndarray
    """Share of the text up to each token that is kept, 0 to 1; NaN where it is unknown [T]. Before `weighed` it is 0 or 1 where
    the settled text is known."""
    accepted: bool | None
    """Whether the developer accepted it; None without an answer."""
    decided: tuple[float, int] | None = None
    """The chance by which serving showed it, and the number of tokens shown; None where the chance did not decide."""
    compared: Compared | None = None
    """None where the settled text is unknown."""


def labelled_completions(
    store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame
) -> Iterator[LabelledCompletion]:
    """Yield the labelled completions among classified requests (tasks/labels/accounting.py), by time, then id, in each partition.

    Completions without log-probabilities, with one that is no finite number, or without a labelled beginning, are left out: of
    those that nobody answered, and of tokens that nobody saw, validation checks none.
    """
    for partition, own in divided(partitions, chosen):
        usable = ~pl.col("mixed") & (pl.col("token_ends").list.len() > 0) & (pl.col("finish_reason") != "error")
        usable &= pl.col("logprobs").list.eval(pl.element().is_finite()).list.all()
        served = unique(read_chosen(store, partition, own, ("prompt_token_ids",)).filter(usable))
        names = ("settled", "settled_whole", "outcome", "extent", "shown_characters", "kept_characters", "typed_over")
        labels = own.select("id", *names)
        for row in served.join(labels, on="id").sort("time", "id").iter_rows(named=True):
            completion = labelled(row)
            if not np.isnan(completion.kept).all():
                yield completion


def labelled(row: dict[str, Any]) -> LabelledCompletion:
    """Return a recorded completion with its labels."""
    ends, generated, compared = row["token_ends"], row["text"] + row["held_back"], None
    if row["settled"] is not None:
        whole, end, typed = bool(row["settled_whole"]), row["extent"] or 0, row["typed_over"] or 0
        kept, shown_text = (
            kept_up_to(generated, ends, row["settled"], whole),
            row["text"][end - (row["shown_characters"] or 0) : end],
        )
        verdict = acceptance.verdict_on(row["outcome"], shown_text, row["settled"][typed:], whole)
        judge = {name: row[name] for name in ("user", "credential", "project")}
        compared = Compared(row["settled"], shown_text, verdict, typed, judge)
    else:
        kept = np.full(len(ends), np.nan)
        if at := tokens_of(ends, row["extent"] or 0):
            kept[at - 1] = label_of(row["outcome"], row["kept_characters"], row["shown_characters"] or 0)
    shown = tokens_of(ends, len(row["text"]))
    decided = row["chance"] is not None and not row["audited"] and shown > 0
    return LabelledCompletion(
        Place(*line_of(row["prefix"], row["suffix"]), row["language"], row["user_acceptance"], row["project_acceptance"]),
        row["temperature"],
        generated,
        row["logprobs"],
        ends,
        kept,
        {"accepted": True, "partially_accepted": True, "rejected": False}.get(row["outcome"]),
        (row["chance"], shown) if decided else None,
        compared,
    )


def label_of(outcome: str | None, kept: int | None, shown: int) -> float:
    """Return the label of a shown text by the developer's answer; NaN where that is no verdict on all of it.

    Args:
        kept: characters of it that stand at its place, which may be known without a settled text; None: unknown.
        shown: its characters.
    """
    label = JUDGED.get(outcome or "", np.nan)
    return label if kept is None else label * min(kept / max(shown, 1), 1.0)


def line_of(prefix: str, suffix: str) -> tuple[str, str]:
    """Return the cursor's line, which the features are of; the whole texts of a cycle would take half a gigabyte."""
    prefix, suffix = normal_context(prefix, suffix)
    return prefix[prefix.rfind("\n") + 1 :], suffix.partition("\n")[0]


def kept_up_to(generated: str, ends: Sequence[int], settled: str, whole: bool) -> np.ndarray:
    """Return whether the text up to each token is the beginning of a settled text [T]; blanks at its end do not count.

    NaN for a blank text, and for one that goes on beyond a settled text that is not whole.
    """
    kept = np.zeros(len(ends))
    for token, end in enumerate(ends):
        text = generated[:end].rstrip()
        beyond = not whole and text.startswith(settled)
        if not text or beyond:
            kept[token] = np.nan
        elif settled.startswith(text):
            kept[token] = 1.0
    return kept


def weighed(
    completions: Sequence[LabelledCompletion], shares: Mapping[str, float] = MappingProxyType({})
) -> list[LabelledCompletion]:
    """Return completions with labels weighed by the acceptance fitted on their verdicts; as they are where none can be fitted.

    Args:
        shares: as in acceptance.capped.
    """
    judged = [one.compared for one in completions if one.compared and one.compared.verdict is not None]
    pairs, verdicts = [(one.shown, one.settled[one.typed :]) for one in judged], [bool(one.verdict) for one in judged]
    model = acceptance.fit(pairs, verdicts, acceptance.capped([one.judge for one in judged], shares))
    if isinstance(model, str):
        return list(completions)
    return [replace(one, kept=_shares(one, one.compared, model)) if one.compared else one for one in completions]


def _shares(completion: LabelledCompletion, texts: Compared, model: Acceptance) -> np.ndarray:
    """Return the chance that the text up to each token is accepted, times the share of it that stands in the settled text [T]."""
    shares = np.full(len(completion.ends), np.nan)
    known = np.flatnonzero(~np.isnan(completion.kept))
    beginnings = [completion.text[: completion.ends[token]].rstrip() for token in known]
    kept = [min(kept_characters(text, texts.settled) / len(text), 1.0) for text in beginnings]
    shares[known] = np.array(kept) * np.array(model.chances([(text, texts.settled) for text in beginnings]))
    return shares


def tokens_of(ends: Sequence[int], characters: int) -> int:
    """Return the number of tokens that make up so many characters; 0 for none, or where they are not all there."""
    return next((token for token, end in enumerate(ends, 1) if end >= characters), 0) if characters else 0
