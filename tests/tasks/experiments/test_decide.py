"""The A/B gate: verdicts, their reasons, and the requests that count."""

import numpy as np
import pytest

from evals.statistics import Totals as UserTotals
from infra.records import Completion, ExperimentRecord, Feedback
from infra.settings.schema import Collect, Experiment
from tasks.experiments.decide import decide
from tasks.experiments.totals import ArmTotals, gather, total
from tasks.labels.attribution import join
from tests.tasks.made import NOW, MemoryStore, completion, feedback
from tests.tasks.rows import frame

TEST = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW)
SETTINGS = Experiment(min_requests=200, max_seconds=1000, min_users=5, min_history_requests=0)


def totals(requests: int = 0, accepted: int = 0, characters: int = 0, shown: int = 0) -> UserTotals:
    return UserTotals(requests, {"accepted": accepted, "characters": characters, "shown": shown})


def labelled(completions, events):
    return join(frame(completions, Completion), frame(events, Feedback), 60)[0]


def arm(users: int, rate: float, seed: int, characters: float = 8.0, name: str = "") -> dict[str, UserTotals]:
    rng = np.random.default_rng(seed)
    users_totals = {}
    for i in range(users):
        accepted = int(rng.binomial(50, rate))
        users_totals[f"{name}{seed}-{i}"] = totals(50, accepted, int(accepted * characters), 45)
    return users_totals


def verdict(champion, challenger, after: float = 10, settings=SETTINGS):
    return decide(TEST, ArmTotals({"champion": champion, "challenger": challenger}, {}), settings, NOW + after)


def test_a_clearly_better_challenger_is_promoted() -> None:
    result = verdict(arm(40, 0.15, 1), arm(40, 0.35, 2))
    assert result.verdict == "promote"
    assert result.low is not None
    assert result.low > 0
    assert (result.requests, result.users) == ({"champion": 2000, "challenger": 2000}, {"champion": 40, "challenger": 40})


def test_a_clearly_worse_challenger_is_rejected() -> None:
    assert verdict(arm(40, 0.35, 1), arm(40, 0.15, 2)).verdict == "reject"


def test_more_accepts_with_far_fewer_characters_are_rejected() -> None:
    result = verdict(arm(40, 0.2, 1, characters=20), arm(40, 0.35, 2, characters=2))
    assert result.verdict == "reject"
    assert "fewer accepted characters" in result.reason


def test_more_accepts_without_more_characters_stay_undecided() -> None:
    result = verdict(arm(40, 0.2, 1, characters=9), arm(40, 0.35, 2, characters=5))
    assert result.verdict == "undecided"
    assert "fewer characters so far" in result.reason


def test_a_moderate_win_is_promoted_only_at_the_planned_size() -> None:
    champion, challenger = arm(120, 0.20, 1), arm(120, 0.225, 2)
    early = verdict(champion, challenger, settings=SETTINGS.model_copy(update={"planned_requests": 6001}))
    assert early.verdict == "undecided" and early.low is not None and early.low < 0
    last = verdict(champion, challenger, settings=SETTINGS.model_copy(update={"planned_requests": 6000}))
    assert last.verdict == "promote" and last.low is not None and last.low > 0


def test_without_a_win_at_the_planned_size_the_challenger_is_rejected_with_the_reason() -> None:
    result = verdict(arm(120, 0.2, 1), arm(120, 0.2, 2), settings=SETTINGS.model_copy(update={"planned_requests": 6000}))
    assert result.verdict == "reject"
    assert result.reason.startswith("no win in 6000 requests an arm (experiment.planned_requests): no difference is sure")
    assert result.estimate is not None
    assert result.promising == (result.estimate >= 0)


@pytest.mark.parametrize(("extra", "promising"), [(1, True), (-1, False), (-4, False)])
def test_a_challenger_that_did_no_worse_is_promising_at_the_planned_size(extra: int, promising: bool) -> None:
    """One user in ten accepts `extra` more of 50 completions."""

    def users(name: str, extra: int) -> dict[str, UserTotals]:
        accepted = [8 + i % 5 + (extra if i % 10 == 0 else 0) for i in range(120)]
        return {f"{name}{i}": totals(50, count, 8 * count, 45) for i, count in enumerate(accepted)}

    settings = SETTINGS.model_copy(update={"planned_requests": 6000})
    planned = verdict(users("a", 0), users("b", extra), settings=settings)
    assert (planned.verdict, planned.promising) == ("reject", promising)
    early = verdict(users("a", 0), users("b", extra))
    assert (early.verdict, early.promising) == ("undecided", False)


def test_repeated_evaluation_promotes_equal_arms_no_more_often_than_alpha() -> None:
    settings = Experiment(min_requests=500, planned_requests=3000, min_users=5, max_seconds=1e9)
    promoted, runs = 0, 300
    for number in range(runs):
        rng = np.random.default_rng(number)
        arms: list[dict[str, UserTotals]] = [{f"{side}{i}": totals() for i in range(60)} for side in "ab"]
        for _ in range(6):
            for users in arms:
                for user in users:
                    users[user] += totals(10, accepted := int(rng.binomial(10, 0.1)), 8 * accepted, 9)
            if (result := verdict(*arms, settings=settings).verdict) != "undecided":
                break
        promoted += result == "promote"
        assert result != "undecided"
    # A promotion uses one side of the two-sided test. The bound is its level plus three standard errors.
    assert promoted / runs < settings.alpha / 2 + 3 * (settings.alpha / 2 / runs) ** 0.5


@pytest.mark.parametrize(
    ("champion", "challenger", "reason"),
    [
        ({}, {}, "0 and 0 users"),
        (arm(40, 0.2, 1), {}, "0 and 40 users"),
        (arm(5, 0.2, 1), arm(3, 0.2, 2), "3 and 5 users"),
        (arm(5, 0.2, 1), arm(100, 0.9, 2), "sample-ratio"),
        (arm(10, 0.2, 1), arm(10, 0.9, 1), "both arms"),
        ({f"u{i}": totals(1, 1, 8, 1) for i in range(20)}, {f"v{i}": totals(1) for i in range(20)}, "requests"),
        (arm(20, 0.0, 1), arm(20, 0.0, 2), "does not vary"),
        (arm(40, 0.2, 1), arm(40, 0.2, 2), "no difference is sure"),
    ],
)
def test_missing_or_invalid_evidence_never_promotes(champion, challenger, reason: str) -> None:
    early = verdict(champion, challenger)
    assert early.verdict == "undecided"
    assert reason in early.reason
    late = verdict(champion, challenger, after=1000)
    assert late.verdict == "reject"
    assert late.reason.startswith("no win in 1000 s")


def test_only_settled_comparable_requests_count() -> None:
    fields = {"experiment": "e", "time": NOW + 1}
    completions = [
        completion("accepted", prefix="a", **fields),
        completion("rejected", prefix="b", **fields),
        completion("unlabelled", prefix="c", **fields),
        completion("empty", prefix="d", text="", **fields),
        completion("pinned", prefix="e", pinned=True, **fields),
        completion("exploring", prefix="e2", exploring=True, **fields),
        completion("opted out", prefix="f", opted_out=True, **fields),
        completion("young", prefix="g", experiment="e", time=NOW + 50),
        completion("other test", prefix="h", experiment="another", time=NOW + 1),
        completion("challenger", prefix="i", user="v", arm="challenger", **fields),
        completion("before", prefix="j", time=NOW - 5),
    ]
    events = [
        feedback("1", prefix="a", time=NOW + 2),
        feedback("2", prefix="b", outcome="rejected", time=NOW + 2),
        feedback("3", prefix="i", user="v", time=NOW + 2),
        feedback("4", prefix="j", time=NOW - 4),
    ]
    users, before = total(labelled(completions, events), TEST, until=NOW + 20, settings=Experiment(max_characters=80))
    assert users["champion"] == {"u": totals(requests=4, accepted=1, characters=8, shown=3)}
    assert users["challenger"] == {"v": totals(1, 1, 8, 1)}
    assert before == {"u": totals(1, 1, 8, 1)}
    users, _ = total(labelled(completions, events), TEST, until=NOW + 20, settings=Experiment(max_characters=5))
    assert users["challenger"] == {"v": totals(1, 1, 5, 1)}, "max_characters limits the weight of one accept"


def test_evidence_names_the_objects_that_were_read() -> None:
    store = MemoryStore()
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", [completion(experiment="e", time=NOW + 1)])
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", [feedback(time=NOW + 2)])
    evidence = gather(store, TEST, Collect(settle_seconds=5), SETTINGS, NOW + 60)
    assert evidence.users["champion"] == {"u": totals(1, 1, 8, 1)}
    assert {r.key.split("/")[1] for r in evidence.inputs} == {"completions", "feedback"}
