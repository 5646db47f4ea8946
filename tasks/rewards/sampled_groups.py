"""GRPO groups that a cycle samples itself: completions of the parent at recorded positions, which nobody saw.

Where the settled text of a position is known, completions can be scored against it without showing them to anybody. At some
positions the cycle samples several completions from the policy that the update starts from, scores each by the chance that a
developer accepts it (tasks/rewards/acceptance.py), and estimates its advantage within its group (GRPO: Shao et al. 2024,
"DeepSeekMath", section 4.1.2). The rows are samples with the outcome "judged", sealed with the others: resuming, caps and
erasure cover them.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from infra.records import Sample
from infra.settings.schema import Reward
from infra.settings.training import Groups
from infra.storage.store import ObjectStore
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition
from tasks.labels.read import TOKEN_FIELDS, read_completions
from tasks.rewards.acceptance import Acceptance, fit
from tasks.rewards.reward import NOTHING, group_advantages
from tasks.rewards.weights import TooFewToShare, cap_weights

if TYPE_CHECKING:
    from tasks.evaluation.models.generation import SampledCompletion  # it imports torch

Sampler = Callable[[Sequence[tuple[str, str]]], "Sequence[SampledCompletion]"]
"""Samples a completion of each (prefix, suffix)."""


@dataclass(frozen=True)
class SettledPlace:
    """A recorded position with its settled text, and the text that was shown there."""

    id: str
    """Of the request."""
    project: str
    user: str
    credential: str
    prefix: str
    suffix: str
    settled: str
    whole: bool
    shown: str
    accepted: bool | None
    """Whether the developer accepted it; None without an answer, or where a part was accepted."""

    @property
    def line_is_known(self) -> bool:
        """Whether the end of the settled text's first line is known."""
        return self.whole or "\n" in self.settled


@dataclass(frozen=True)
class SampledGroups:
    """The rows of a cycle's groups, or why it has none."""

    samples: tuple[Sample, ...] = ()
    reason: str = ""


def settled_places(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> Iterator[SettledPlace]:
    """Yield the samples with a settled text, by time, then id, in each partition.

    Args:
        chosen: classified requests to train on (tasks/labels/accounting.py).
    """
    for partition in partitions:
        own = chosen.filter(partition.owns(chosen["time"].to_numpy()), pl.col("settled").is_not_null())
        if own.is_empty():
            continue
        recent = partition.completions.filter(pl.col("last") >= own["time"].min())
        completions, _ = read_completions(store, replace(partition, completions=recent), partition.owns, TOKEN_FIELDS)
        served = unique(completions.join(own, on=["id", "time"], how="semi")).select("id", "time", "prefix", "suffix", "text")
        labels = own.select(
            *("id", "project", "user", "credential", "settled", "settled_whole", "extent", "shown_characters"),
            outcome=pl.col("outcome").cast(pl.String),
        )
        for row in served.join(labels, on="id").sort("time", "id").iter_rows(named=True):
            end, size = row["extent"] or 0, row["shown_characters"] or 0
            yield SettledPlace(
                **{name: row[name] for name in ("id", "project", "user", "credential", "prefix", "suffix", "settled")},
                whole=bool(row["settled_whole"]),
                shown=row["text"][end - size : end],
                accepted={"accepted": True, "rejected": False}.get(row["outcome"]),
            )


def draw(
    places: Sequence[SettledPlace], version: str, sampler: Sampler, settings: Groups, reward: Reward, shares: Mapping[str, float]
) -> SampledGroups:
    """Return the rows of groups at some of the places.

    Args:
        version: policy that the sampler samples from.
        shares: largest share of the groups' weight, by the column that names the group.
    """
    judged = [place for place in places if place.accepted is not None]
    model = fit([(p.shown, p.settled) for p in judged], [bool(p.accepted) for p in judged])
    if model is None:
        return SampledGroups(reason=f"{len(judged)} judged completions with a settled text, too few of them accepted or rejected")
    asked = pick([place for place in places if place.line_is_known], settings.places)
    repeated = [place for place in asked for _ in range(settings.size)]
    completions = sampler([(place.prefix, place.suffix) for place in repeated])
    rows = list(rows_of(repeated, completions, scores(repeated, completions, model, reward), version, settings))
    try:
        return SampledGroups(tuple(capped(rows, shares)))
    except TooFewToShare as error:
        return SampledGroups(reason=str(error))


def pick(places: Sequence[SettledPlace], most: int) -> list[SettledPlace]:
    """Return at most so many places, chosen by their id alone, in their order."""
    ranked = sorted(places, key=lambda place: hashlib.sha256(place.id.encode()).digest())
    chosen = {place.id for place in ranked[:most]}
    return [place for place in places if place.id in chosen]


def scores(
    places: Sequence[SettledPlace], completions: "Sequence[SampledCompletion]", model: Acceptance, reward: Reward
) -> list[float]:
    """Return the expected reward of showing each completion."""
    pairs = [(completion.text, place.settled) for place, completion in zip(places, completions, strict=True)]
    return [
        chance * reward.accepted + (1 - chance) * reward.rejected if shown.strip() else NOTHING
        for chance, (shown, _) in zip(model.chances(pairs), pairs, strict=True)
    ]


def rows_of(
    places: Sequence[SettledPlace],
    completions: "Sequence[SampledCompletion]",
    rewards: Sequence[float],
    version: str,
    settings: Groups,
) -> Iterator[Sample]:
    """Yield the row of each completion with an advantage; the places of one group are adjacent."""
    advantages = group_advantages(rewards, [place.id for place in places])
    rows = zip(places, completions, rewards, advantages, strict=True)
    for number, (place, completion, earned, advantage) in enumerate(rows):
        if advantage:
            yield Sample(
                completion_id=f"{place.id}/drawn-{number % settings.size + 1}",
                user=place.user,
                project=place.project,
                credential=place.credential,
                policy_version=version,
                prompt_token_ids=completion.prompt,
                token_ids=completion.tokens,
                logprobs=tuple(min(value, 0.0) for value in completion.logprobs),
                temperature=settings.temperature,
                outcome="judged",
                shown_characters=len(completion.text),
                accepted_characters=0,
                reward=earned,
                advantage=advantage,
            )


def capped(rows: Sequence[Sample], shares: Mapping[str, float]) -> Iterator[Sample]:
    """Yield the rows; the advantages of groups above their share are scaled down to it.

    Raises:
        TooFewToShare: fewer have weight than the shares ask for.
    """
    if not rows:
        return
    names = ("user", "project", "credential", "advantage")
    frame = pl.DataFrame({name: [getattr(row, name) for row in rows] for name in names})
    nothing = frame.with_columns(settled_token_ids=pl.lit([], pl.List(pl.Int64)), standing_tokens=0)
    for row, advantage in zip(rows, cap_weights(nothing, shares)["advantage"], strict=True):
        yield row.model_copy(update={"advantage": advantage})
