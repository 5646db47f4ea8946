"""The report's figures: rates of versions and their differences, with intervals clustered by user."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evals.compare.gains import Counts, Sums, by_user, gain
from evals.demo.record import Baselines, Changes, Comparison, Difference, Example, Exploration, GroundRow, RateAt
from evals.developers import PairedRun
from evals.developers.tally import Example as Seen
from infra.model.kept_text import common_start
from infra.model.time_saved import HOUR, KEY_SECONDS
from tasks.statistics.ratios import rate

EXAMPLES = 4
"""Gains that are shown, and losses."""
LEAST_USERS = 2
"""Users that an interval needs, of each kind of request."""


def compare(base: tuple[Counts, Counts], champion: tuple[Counts, Counts]) -> Comparison:
    """Return the ratios of two versions and their difference. Both give (numerators, denominators) of the same users in order."""
    estimate, width = gain(base, champion)
    return Comparison(
        base=rate(*base),
        champion=rate(*champion),
        difference=Difference(estimate=estimate, low=estimate - width, high=estimate + width),
    )


def comparisons(paired: PairedRun) -> dict[str, Comparison]:
    """Return the report's four comparisons of the first two pins of a paired run, of which the first is the base."""
    base, champion, *_ = sums(paired)
    ratios = {
        "acceptance": ("accepted", "requests"),
        "acceptance_of_shown": ("accepted", "shown"),
        "accepted_characters_per_request": ("accepted_characters", "requests"),
        "shown": ("shown", "requests"),
    }
    return {name: compare(base.per(*of), champion.per(*of)) for name, of in ratios.items()}


def sums(paired: PairedRun) -> list[Sums]:
    """Return the sums by user of each pin."""
    users = [pair.user for pair in paired.pairs]
    by_pin = ([pair.outcomes[pin] for pair in paired.pairs] for pin in range(len(paired.pins)))
    metrics, found = ("accepted", "accepted_characters", "kept_characters", "saved_seconds"), []
    hours = [pair.keys * KEY_SECONDS / HOUR for pair in paired.pairs]
    for outcomes in by_pin:
        values = {name: [float(getattr(one, name)) for one in outcomes] for name in metrics}
        found.append(by_user(users, values | {"shown": [float(bool(one.shown)) for one in outcomes], "hours": hours}))
    return found


def ground_row(paired: PairedRun, names: Sequence[str], temperature: float) -> GroundRow:
    """Return the baselines of a paired run.

    `names`: of its pins (closing.pins_of); the base as served is the base at its best where it is not among them.
    `temperature`: at which the base is at its best.
    """
    pins = dict(zip(names, sums(paired), strict=True))

    def baselines(metric: str, unit: str = "requests") -> Baselines:
        ratios = {name: pin.per(metric, unit) for name, pin in pins.items()}
        base, champion, everything = ratios["base_best"], ratios["champion"], ratios.get("champion_all")
        compared = compare(base, champion)
        learnt, decided = (compare(base, everything), compare(everything, champion)) if everything else (None, None)
        return Baselines(
            base_best=RateAt(**compared.base.model_dump(), temperature=temperature),
            base_served=rate(*ratios.get("base_served", base)),
            champion=compared.champion,
            difference=compared.difference,
            champion_all=learnt and learnt.champion,
            learning=learnt and learnt.difference,
            showing=decided and decided.difference,
        )

    kept, saved = baselines("kept_characters"), baselines("saved_seconds", "hours")
    return GroundRow(**dict(baselines("accepted")), kept_characters=kept, time_saved=saved)


def exploration(requests: Sequence[Mapping[str, Any]], share: float) -> Exploration:
    """Return what exploring costs and brings.

    `requests`: of history.request_rows; `accepted` is null where a request counts in no measure. `share`: of requests that
    explore, by the settings.
    """
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((2, 2)))
    for row in requests:
        if row["accepted"] is not None:
            sums[row["user"]][int(row["exploring"])] += (float(row["accepted"]), 1.0)
    (others, asked), (exploring, explored) = np.array(list(sums.values())).reshape(-1, 2, 2).transpose(1, 2, 0)
    taught = sum(row["exploring"] and row["bucket"] == "trained" for row in requests)
    if min((explored > 0).sum(), (asked > 0).sum()) < LEAST_USERS:
        return Exploration(share=share, taught=taught)
    compared = compare((others, asked), (exploring, explored))
    return Exploration(
        share=share,
        exploring=compared.champion,
        others=compared.base,
        difference=compared.difference,
        cost=-share * compared.difference.estimate,
        taught=taught,
    )


def changes(paired: PairedRun) -> Changes:
    """Return the gains and losses of the second version over the first.

    The examples are the EXAMPLES gains and as many losses whose accepted suggestion has the most right characters from its start,
    each place once, ties in the order of files and places. Gains alone would flatter the champion.
    """
    base, champion = ({(e.file, e.before, e.truth, e.user): e for e in tally.examples} for tally in paired.tallies[:2])
    both = [(base[key], champion[key]) for key in base.keys() & champion.keys()]
    differing = [_example(a, b) for a, b in both if a.accepted != b.accepted]
    ranked = sorted(differing, key=lambda e: (-e.right, e.file, e.prefix, e.truth, e.base, e.champion))
    once = list({(e.file, e.prefix, e.truth): e for e in reversed(ranked)}.values())[::-1]
    chosen = [each for kind in ("gain", "loss") for each in [e for e in once if e.kind == kind][:EXAMPLES]]
    return Changes(
        gains=sum(e.kind == "gain" for e in differing), losses=sum(e.kind == "loss" for e in differing), examples=chosen
    )


def _example(base: Seen, champion: Seen) -> Example:
    accepted = champion if champion.accepted else base
    return Example(
        kind="gain" if champion.accepted else "loss",
        file=base.file,
        right=common_start(accepted.shown, accepted.truth),
        prefix=base.before,
        truth=base.truth,
        base=base.shown,
        base_accepted=base.accepted,
        champion=champion.shown,
        champion_accepted=champion.accepted,
    )
