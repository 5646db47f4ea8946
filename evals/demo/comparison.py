"""The report's figures: rates of versions and their differences, with intervals clustered by user.

The difference of two versions that met the same users is computed from the differences of the users' influences
(evals/statistics.py), so that the part common to a user's two outcomes cancels.
"""

from collections.abc import Callable, Sequence

import numpy as np

from evals.demo.record import Baselines, Comparison, Difference, Example, GroundRow, RateAt, VersionRow
from evals.developers import ExpectedOutcome, PairedRun, Tally
from evals.statistics import margin, rate, ratio

EXAMPLES = 8


def compare(base: tuple[Sequence[float], Sequence[float]], champion: tuple[Sequence[float], Sequence[float]]) -> Comparison:
    """Return the ratios of two versions and their difference. Both give (numerators, denominators) of the same users in order."""
    (first, before), (second, after) = (ratio(np.asarray(n, float), np.asarray(d, float)) for n, d in (base, champion))
    estimate, width = second - first, margin(after - before)
    return Comparison(
        base=rate(*base),
        champion=rate(*champion),
        difference=Difference(estimate=estimate, low=estimate - width, high=estimate + width),
    )


def comparisons(paired: PairedRun) -> dict[str, Comparison]:
    """Return the report's four comparisons of the two pins of a paired run, of which the first is the base."""
    positions = paired.by_user(lambda outcome: 1.0)

    def sums(value: Callable[[ExpectedOutcome], float]) -> tuple[list[float], list[float]]:
        by_user = paired.by_user(value)
        return [by_user[user][1][0] for user in positions], [by_user[user][1][1] for user in positions]

    requests = [float(count) for count, _ in positions.values()]
    accepted, shown = sums(lambda o: o.accepted), sums(lambda o: bool(o.shown))
    characters = sums(lambda o: o.accepted_characters)
    return {
        "acceptance": compare((accepted[0], requests), (accepted[1], requests)),
        "acceptance_of_shown": compare((accepted[0], shown[0]), (accepted[1], shown[1])),
        "accepted_characters_per_request": compare((characters[0], requests), (characters[1], requests)),
        "shown": compare((shown[0], requests), (shown[1], requests)),
    }


def ground_row(paired: PairedRun, temperature: float) -> GroundRow:
    """Return the baselines of a paired run of base and champion, both served at the base's best temperature."""
    positions = paired.by_user(lambda outcome: 1.0)
    requests = [float(count) for count, _ in positions.values()]

    def baselines(value: Callable[[ExpectedOutcome], float]) -> dict[str, object]:
        by_user = paired.by_user(value)
        base, champion = ([by_user[user][1][index] for user in positions] for index in (0, 1))
        compared = compare((base, requests), (champion, requests))
        best = RateAt(**compared.base.model_dump(), temperature=temperature)
        return {
            "base_best": best,
            "base_served": compared.base,
            "champion": compared.champion,
            "difference": compared.difference,
        }

    kept = Baselines.model_validate(baselines(lambda outcome: outcome.kept_characters))
    return GroundRow.model_validate(baselines(lambda outcome: outcome.accepted) | {"kept_characters": kept})


def live_rows(tally: Tally) -> list[VersionRow]:
    """Return live traffic by policy version, oldest first; skips versions with too few users for an interval."""
    rows = []
    for version in sorted((v for v in tally.by_version() if v.isdigit()), key=int):
        cells = [counts for (_, v), counts in tally.cells.items() if v == version and counts.answered]
        if len(cells) < 2:
            continue
        total = tally.by_version()[version]
        rows.append(
            VersionRow(
                version=version,
                acceptance=rate([c.accepted for c in cells], [c.answered for c in cells]),
                characters=total.accepted_characters / total.answered,
                shown=total.judged / total.answered,
            )
        )
    return rows


def examples(paired: PairedRun) -> list[Example]:
    """Return some positions where the two versions' suggestions differ: first gains and losses, then equal decisions."""
    by_pin = [{(e.user, e.file, e.before, e.truth): e for e in tally.examples} for tally in paired.tallies]
    both = [(by_pin[0][key], by_pin[1][key]) for key in by_pin[0] if key in by_pin[1]]
    differing = [(a, b) for a, b in both if a.shown != b.shown]
    # Losses are shown beside gains: a page of gains alone would flatter the champion.
    gains = [pair for pair in differing if pair[1].accepted and not pair[0].accepted]
    losses = [pair for pair in differing if pair[0].accepted and not pair[1].accepted]
    rest = [pair for pair in differing if pair[0].accepted == pair[1].accepted]
    selection = [*gains[: EXAMPLES // 2], *losses[: EXAMPLES // 4], *rest][:EXAMPLES]
    return [
        Example(
            prefix=a.before, truth=a.truth, base=a.shown, base_accepted=a.accepted, champion=b.shown, champion_accepted=b.accepted
        )
        for a, b in selection
    ]
