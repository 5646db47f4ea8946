"""Totals of an A/B test for tests, written as one small table for each user."""

from collections.abc import Mapping

import numpy as np

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
) -> ArmTotals:
    """Return the totals of these users by name; by default, half of each sum is of the second half of the test."""
    names = sorted({*champion, *challenger})
    of_arm: dict[Arm, Mapping[str, UserSums]] = {"champion": champion, "challenger": challenger}

    def sums(users: Mapping[str, UserSums], factor: float = 1.0) -> dict[str, np.ndarray]:
        return {s: np.array([factor * users.get(name, {}).get(s, 0) for name in names]) for s in (*SUMS, *UNCAPPED)}

    return ArmTotals(
        during={arm: sums(of_arm[arm]) for arm in ARMS},
        later={arm: sums((later or of_arm)[arm], 1.0 if later else 0.5) for arm in ARMS},
        in_block={arm: sums(of_arm[arm], 0.5) for arm in ARMS},
        before=sums(before or {}),
        absent=absent or {"champion": 0, "challenger": 0},
    )
