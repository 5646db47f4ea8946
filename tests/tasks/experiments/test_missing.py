"""Answers that are lost on one arm alone, by the gate's own decision: they promote no equal version."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from infra.records import Verdict
from tasks.experiments.counting.totals import ARMS
from tasks.experiments.verdict.missing import filled
from tests.tasks.experiments.arms import UserSums, arm_totals, user
from tests.tasks.experiments.test_decide import changed, judged

SHOWN, TESTS = 45, 20


@dataclass(frozen=True)
class Loss:
    """Shares of an arm's answers that never arrive."""

    accepts: float = 0.0
    rejections: float = 0.0


def arm(name: str, users: int, rate: float, loss: Loss, draw: np.random.Generator) -> dict[str, UserSums]:
    """Users with 50 requests each, who accept what they are shown at rates of their own around this one."""
    made: dict[str, UserSums] = {}
    for number in range(users):
        accepted = draw.binomial(SHOWN, draw.beta(20 * rate, 20 * (1 - rate)))
        known = draw.binomial(accepted, 1 - loss.accepts)
        answers = known + draw.binomial(SHOWN - accepted, 1 - loss.rejections)
        sums = {"judged": answers, "decided": answers, "annoyed": answers - known, "length": 20.0 * answers}
        made[f"{name}{number}"] = user(50, known, shown=SHOWN) | sums
    return made


def decided(users: int, gain: float, champion: Loss, challenger: Loss, number: int, **settings: object) -> Verdict:
    """Return the verdict at the planned end."""
    draw = np.random.default_rng(number)
    arms = arm("a", users, 0.25, champion, draw), arm("b", users, 0.25 + gain, challenger, draw)
    return judged(arm_totals(*arms), settings=changed(planned_requests=50 * users, **settings))


@pytest.mark.parametrize(
    ("champion", "challenger", "words"),
    [(Loss(accepts=0.15), Loss(), "accepts"), (Loss(), Loss(rejections=0.05), "rejections")],
)
def test_lost_answers_of_one_arm_promote_no_equal_version(champion: Loss, challenger: Loss, words: str) -> None:
    """Neither loss is found by the check of answered completions: a twentieth of them may be missing on one arm."""
    found = [decided(1000, 0.0, champion, challenger, number) for number in range(TESTS)]
    verdicts = Counter(each.verdict for each in found)
    assert verdicts["promote"] <= 2 and verdicts["broken"] == 0, verdicts
    doubted = [f"but not if the completions without an answer were {words}" in each.reason for each in found]
    assert sum(doubted) >= TESTS / 4, "without the doubt, these would be promoted"


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_a_better_version_is_promoted_although_answers_are_lost_on_both_arms(share: float) -> None:
    lost = Loss(share, share)
    found = [decided(500, 0.05, lost, lost, number) for number in range(TESTS)]
    assert sum(each.verdict == "promote" for each in found) >= TESTS - 2, [each.reason for each in found]


def test_a_loss_that_missing_answers_hide_is_not_within_its_margin() -> None:
    """Without superiority: a challenger with a tenth fewer accepts, of a champion who loses a tenth of the reports of its own."""
    margins = {"accepted": 0.08, "characters": 0.5, "annoyed": 0.5}
    lossless = decided(2000, -0.025, Loss(), Loss(), 1, mode="non_inferiority", margins=margins)
    hidden = decided(2000, -0.025, Loss(accepts=0.1), Loss(), 1, mode="non_inferiority", margins=margins)
    assert (lossless.verdict, hidden.verdict) == ("reject", "reject"), hidden.reason
    assert "without an answer were accepts" in hidden.reason
    assert not hidden.promising, "nor does the next cycle go on from it"


def test_users_whose_editor_reports_nothing_are_taken_for_no_answers() -> None:
    draw = np.random.default_rng(1)
    silent = {"judged": 0.0, "decided": 0.0, "labelled": 0.0, "annoyed": 0.0, "length": 0.0}
    champion, challenger = arm("a", 40, 0.25, Loss(), draw), arm("b", 40, 0.25, Loss(rejections=0.5), draw)
    totals = arm_totals(champion | {"c": user(50, shown=SHOWN) | silent}, challenger)
    found = [then for _, then in filled(totals)]
    assert len(found) == 2
    for then in found:
        judged = {name: then.during[name]["judged"].sum() for name in ARMS}
        assert judged["champion"] == pytest.approx(judged["challenger"]), "each shows 1,800 to users whose editor reports"
        assert sum(judged.values()) == pytest.approx(sum(totals.during[name]["judged"].sum() for name in ARMS))
    assert not list(filled(arm_totals(champion, champion)))


def test_editors_that_leave_answers_out_on_both_arms_hold_no_promotion_back() -> None:
    """The editors of some users leave out a quarter of the answers, and chance gives the champion's arm twice as many of them."""
    settings = changed(
        planned_requests=9_000, mode="non_inferiority", margins={"accepted": 0.15, "characters": 0.3, "annoyed": 0.15}
    )
    promoted, doubted = Counter[str](), Counter[str]()
    for number in range(TESTS):
        draw, clients, arms = np.random.default_rng(number), dict[str, int](), []
        for name, few in (("a", 60), ("b", 30)):
            partial = arm(f"partial {name}", few, 0.25, Loss(0.25, 0.25), draw)
            arms.append(partial | arm(name, 190 - few, 0.25, Loss(), draw))
            clients |= dict.fromkeys(partial, 1)
        for known, of in (("client", clients), ("no client", {})):
            verdict = judged(arm_totals(arms[0], arms[1], clients=of), settings=settings)
            promoted[known] += verdict.verdict == "promote"
            doubted[known] += "without an answer" in verdict.reason
    assert doubted["client"] == 0 and promoted["client"] >= TESTS / 2, (promoted, doubted)
    assert doubted["no client"] >= TESTS / 4, "without the clients, these would be taken for a fault"
