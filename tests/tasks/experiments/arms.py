"""Totals of an A/B test for tests, written as one small table for each user."""

from collections.abc import Mapping

import numpy as np

from evals.bench.experiments.simulate import unanswered
from infra.records import Arm
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.totals import ARMS, MADE, NAMED, UNCAPPED, ArmTotals

UserSums = Mapping[str, float]


def user(requests: float, accepted: float = 0, characters: float | None = None, shown: float | None = None) -> dict[str, float]:
    """Return a user's sums: what was shown was judged, and what was not accepted annoyed."""
    shown = requests if shown is None else shown
    return {
        **{
            "requests": requests,
            MADE: requests,
            "turns_6": 8,
            NAMED: requests,
            "labelled": requests,
            "judged": shown,
            "decided": shown,
            "visible": shown,
            "shown": shown,
        },
        **{"accepted": accepted, "characters": 8 * accepted if characters is None else characters},
        **{"annoyed": shown - accepted, "empty": requests - shown, "length": 20 * shown},
        **{"ttft_p50": requests // 2, "ttft_p95": requests // 20, "total_p50": requests // 2, "total_p95": requests // 20},
    }


def arm_totals(
    champion: Mapping[str, UserSums],
    challenger: Mapping[str, UserSums],
    before: Mapping[str, UserSums] | None = None,
    later: Mapping[Arm, Mapping[str, UserSums]] | None = None,
    absent: Mapping[Arm, int] | None = None,
    clients: Mapping[str, int] | None = None,
) -> ArmTotals:
    """Return the totals of these users by name.

    By default, half of each sum is of the second half of the test, and all users have one client; `clients`: its number, by user.
    """
    names = sorted({*champion, *challenger})
    of_arm: dict[Arm, Mapping[str, UserSums]] = {"champion": champion, "challenger": challenger}

    def sums(users: Mapping[str, UserSums]) -> dict[str, np.ndarray]:
        columns = {s: [0.0] * len(names) for s in (*SUMS, *UNCAPPED)}
        for at, name in enumerate(names):
            for s, value in users.get(name, {}).items():
                if s in columns:
                    columns[s][at] = value
        return {s: np.array(column, dtype=float) for s, column in columns.items()}

    during = {arm: sums(of_arm[arm]) for arm in ARMS}
    client = np.array([(clients or {}).get(name, 0) for name in names], dtype=int)
    for of, lacking in zip(during.values(), unanswered(tuple(during.values()), client), strict=True):
        of["unanswered"] = lacking
    halves, in_block = ({arm: {s: 0.5 * of[s] for s in of} for arm, of in during.items()} for _ in range(2))
    return ArmTotals(
        during=during,
        later={arm: sums(later[arm]) for arm in ARMS} if later else halves,
        in_block=in_block,
        before=sums(before or {}),
        absent=absent or {"champion": 0, "challenger": 0},
    )
