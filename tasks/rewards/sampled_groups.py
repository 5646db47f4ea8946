"""Groups that a cycle draws itself: completions of the parent at recorded positions, which nobody saw.

Where the settled text of a position is known, completions can be scored against it without showing them to anybody. At each such
position, up to `train.groups.places` of them, the cycle draws several completions from the policy that the update starts from.
Each is rewarded by the chance that a developer accepts it (acceptance.py) and by what it is then worth (actions.py). Equal draws
are one row. Silence, the end token alone, is a row of its own. The rows are samples with the outcome "judged", sealed with the
others: resuming, caps and erasure cover them.
"""

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from infra.model.kept_text import kept_characters
from infra.records import AcceptanceFit, Sample
from infra.settings.schema import Reward
from infra.settings.training import Groups
from infra.storage.store import ObjectStore
from tasks.evaluation.models.base import DrawnGroup, SampledCompletion
from tasks.labels.attribution import unique
from tasks.labels.partitions import Partition, divided
from tasks.labels.read import TOKEN_FIELDS, read_chosen
from tasks.rewards.acceptance import Acceptance, capped, fit, verdict_on
from tasks.rewards.actions import SILENCE, worth
from tasks.rewards.reward import DrawnAction

Sampler = Callable[[Sequence["SettledPlace"]], Sequence[DrawnGroup]]
"""Draws the group of each place."""


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
    """Whether the developer accepted it; None where that is no verdict to fit on (acceptance.verdict_on)."""
    typed: int = 0
    """Characters of the settled text that the developer typed before it was shown."""

    @property
    def line_is_known(self) -> bool:
        """Whether the end of the settled text's first line is known."""
        return self.whole or "\n" in self.settled


@dataclass(frozen=True)
class SampledGroups:
    """The drawn actions of a cycle, or why it has none."""

    actions: tuple[DrawnAction, ...] = ()
    error: AcceptanceFit | None = None
    """Of the acceptance that rewards them."""
    reason: str = ""
    """Why nothing is drawn, as a clause."""


def settled_places(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> Iterator[SettledPlace]:
    """Yield the samples with a settled text, by time, then id, in each partition.

    Args:
        chosen: classified requests to train on (tasks/labels/accounting.py).
    """
    for partition, own in divided(partitions, chosen.filter(pl.col("settled").is_not_null())):
        served = unique(read_chosen(store, partition, own, TOKEN_FIELDS)).select("id", "time", "prefix", "suffix", "text")
        labels = own.select(
            *("id", "project", "user", "credential", "settled", "settled_whole", "extent", "shown_characters", "typed_over"),
            outcome=pl.col("outcome").cast(pl.String),
        )
        for row in served.join(labels, on="id").sort("time", "id").iter_rows(named=True):
            end, size, typed = row["extent"] or 0, row["shown_characters"] or 0, row["typed_over"] or 0
            shown, whole = row["text"][end - size : end], bool(row["settled_whole"])
            yield SettledPlace(
                **{name: row[name] for name in ("id", "project", "user", "credential", "prefix", "suffix", "settled")},
                whole=whole,
                shown=shown,
                accepted=verdict_on(row["outcome"], shown, row["settled"][typed:], whole),
                typed=typed,
            )


def draw(
    places: Iterable[SettledPlace],
    version: str,
    sampler: Sampler,
    settings: Groups,
    reward: Reward,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> SampledGroups:
    """Return the drawn actions of some of the places, with rewards and without advantages.

    Args:
        places: read once; of those that are not drawn at, only the texts of a verdict are held.
        version: policy that the sampler samples from.
        shares: as in acceptance.capped, by the field of a place that names the group (weight_shares).
    """
    pairs: list[tuple[str, str]] = []
    accepted: list[bool] = []
    judges: list[dict[str, str]] = []

    def candidates() -> Iterator[SettledPlace]:
        for place in places:
            if place.accepted is not None:
                pairs.append((place.shown, place.settled[place.typed :]))
                accepted.append(place.accepted)
                judges.append({name: getattr(place, name) for name in shares})
            if place.line_is_known:
                yield place

    asked = pick(candidates(), settings.places)
    model = fit(pairs, accepted, capped(judges, shares))
    if isinstance(model, str):
        return SampledGroups(reason=model)
    if not asked:
        return SampledGroups(error=model.error, reason="no settled text reaches the end of its line")
    groups = zip(asked, sampler(asked), strict=True)
    actions = [action for place, group in groups for action in actions_of(place, group, model, reward, version, settings)]
    return SampledGroups(tuple(actions), model.error)


def pick(places: Iterable[SettledPlace], most: int) -> list[SettledPlace]:
    """Return at most so many places, chosen by their id alone, in their order."""
    chosen = heapq.nsmallest(most, enumerate(places), key=lambda one: hashlib.sha256(one[1].id.encode()).digest())
    return [place for _, place in sorted(chosen, key=lambda one: one[0])]


def rewards_of(texts: Sequence[str], settled: str, model: Acceptance, reward: Reward) -> list[float]:
    """Return the reward of each text, of which up to the end of its line would be shown; SILENCE for a blank one."""
    line = settled.split("\n", 1)[0].rstrip()
    shown = [text.split("\n", 1)[0].rstrip() for text in texts]
    chances = model.chances([(text, settled) for text in shown])
    worths = [worth(kept_characters(text, line), len(text), len(line)) for text in shown]
    gain = reward.accepted - reward.rejected
    return [
        reward.rejected + gain * chance * part if text.strip() else SILENCE
        for text, chance, part in zip(shown, chances, worths, strict=True)
    ]


def actions_of(
    place: SettledPlace, group: DrawnGroup, model: Acceptance, reward: Reward, version: str, settings: Groups
) -> Iterator[DrawnAction]:
    """Yield the different texts of a group as actions, and its silence where that is an action.

    A draw of nothing but the end token is left out there: the action of silence has its share. That is the probability of
    silence, or at another temperature than 1, at which engines do not score it, the part of the draws that are silent.

    Raises:
        ValueError: a log-probability is not one; the update could not be trained on it.
    """
    drawn = list(group.completions)
    odd = [value for one in drawn for value in one.logprobs if not math.isfinite(value)]
    if odd or math.isnan(group.silence):
        raise ValueError(
            f"place {place.id}: a log-probability of version {version} = {(*odd, group.silence)[0]}, expected a finite number: "
            "see `tabloop logs evaluation` for its engine. Nothing was sealed; `tabloop cycle` begins again"
        )
    if reward.silence:
        silent = [one for one in drawn if not one.text and len(one.tokens) == 1]
        drawn = [one for one in drawn if one.text or len(one.tokens) > 1]
        share = len(silent) / settings.size
        if settings.temperature == 1:
            silent = [SampledCompletion(group.prompt, (group.end,), (group.silence,), "")]
            share = math.exp(min(group.silence, 0.0))
        for quiet in silent[:1]:
            row = _row(place, f"{place.id}/silence", quiet, settings.temperature, SILENCE, version)
            yield DrawnAction(row, place.id, "silence", share)
    copies = Counter(one.tokens for one in drawn)
    different = list({one.tokens: one for one in drawn}.values())
    rewards = rewards_of([one.text for one in different], place.settled, model, reward)
    for number, (one, earned) in enumerate(zip(different, rewards, strict=True), 1):
        row = _row(place, f"{place.id}/drawn-{number}", one, settings.temperature, earned, version)
        yield DrawnAction(row, place.id, "drawn", copies[one.tokens] / settings.size, copies[one.tokens])


def _row(place: SettledPlace, name: str, drawn: SampledCompletion, temperature: float, earned: float, version: str) -> Sample:
    return Sample(
        completion_id=name,
        user=place.user,
        project=place.project,
        credential=place.credential,
        policy_version=version,
        prompt_token_ids=drawn.prompt,
        token_ids=drawn.tokens,
        logprobs=tuple(min(value, 0.0) for value in drawn.logprobs),
        temperature=temperature,
        outcome="judged",
        shown_characters=len(drawn.text) if drawn.text.strip() else 0,
        accepted_characters=0,
        reward=earned,
    )
