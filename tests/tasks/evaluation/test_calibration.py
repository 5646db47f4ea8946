"""The judge is judged, asked once for a text, and its failures are never scores."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tasks.evaluation.judge import CachedJudge, Failed, Item, Judgement, ReferenceJudge, Scored
from tasks.evaluation.judge.calibration import area, calibrate, corrupt
from tasks.evaluation.positions import Position
from tests.tasks.made import MemoryStore

PLACES = [
    Position(f"f{n}.py", n, f"def name_{n}(self, other):\n    value_{n} = ", "\n", f"self.field_{n} + other.size({n})")
    for n in range(90)
]


class FixedJudge:
    """Answers by a function of the item, and counts what it was asked."""

    name = "fixed"

    def __init__(self, answer) -> None:
        self.answer = answer
        self.asked: list[Item] = []

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        self.asked += items
        return [self.answer(item) for item in items]


def item(number: int) -> Item:
    return Item(f"prefix {number}", "", "text", "truth")


def test_the_area_equals_counting_pairs_and_is_resampled_by_place() -> None:
    true, corrupted = np.array([9.0, 5.0, 7.0]), np.array([1.0, 5.0, 8.0])
    found, low, high = area(true, corrupted)
    assert found == pytest.approx((3 + 1.5 + 2) / 9)  # 9 beats all, 5 beats one and ties one, 7 beats two
    assert low <= found <= high
    assert area(np.ones(50), np.zeros(50)) == pytest.approx((1.0, 1.0, 1.0))


def test_every_corruption_differs_from_the_true_text() -> None:
    texts = [corrupt(place, PLACES[n - 1], n) for n, place in enumerate(PLACES)]
    assert all(text.strip() != place.truth.strip() for text, place in zip(texts, PLACES, strict=True))
    assert texts[3] == PLACES[2].truth and texts[4] == PLACES[4].truth[: len(PLACES[4].truth) // 2] and "value_5" in texts[5]
    same = Position("f", 0, "", "", "x")
    assert corrupt(same, same, 0) == corrupt(same, same, 2) == "x ?"


def test_a_judge_that_sees_the_difference_counts_and_one_that_guesses_does_not() -> None:
    sees = calibrate(ReferenceJudge(), PLACES, 60)
    assert (sees.counts, sees.auc, sees.places, sees.failures) == (True, 1.0, 60, 0)
    draw = np.random.default_rng(0)
    guesses = calibrate(FixedJudge(lambda _: Scored(float(draw.random()))), PLACES, 60)
    assert not guesses.counts and guesses.low is not None and guesses.low < 0.6
    assert "a judge that counts has 0.8 or more" in guesses.reason
    same = calibrate(FixedJudge(lambda _: Scored(10.0)), PLACES, 60)
    assert (same.auc, same.counts) == (0.5, False)


def test_failures_of_the_calibration_are_counted_and_excluded() -> None:
    def answer(asked: Item) -> Judgement:
        return Failed("timeout", "") if asked.prefix.startswith("def name_1") else ReferenceJudge().score([asked])[0]

    found = calibrate(FixedJudge(answer), PLACES, 60)
    assert found.failures > 0 and found.places + found.failures == 60 and found.auc == 1.0
    away = calibrate(FixedJudge(lambda _: Failed("unavailable", "")), PLACES, 60)
    assert (away.auc, away.counts, away.failures, away.away) == (None, False, 60, 60)
    garbled = calibrate(FixedJudge(lambda _: Failed("garbage", "")), PLACES, 60)
    assert (garbled.failures, garbled.away) == (60, 0)


def test_a_text_is_judged_once_by_one_model_and_rubric() -> None:
    store, judge = MemoryStore(), FixedJudge(lambda asked: Scored(float(len(asked.prefix))))
    cached = CachedJudge(judge, "model 1\nrubric", store)
    items = [item(n) for n in (1, 22, 1)]
    assert cached.score(items) == [Scored(8.0), Scored(9.0), Scored(8.0)]
    assert judge.asked == [item(1), item(22)]
    assert cached.score([*items, item(333)])[-1] == Scored(10.0)
    assert judge.asked == [item(1), item(22), item(333)], "only what is new is asked"
    assert len(store.objects) == 3, "an object for each place"
    CachedJudge(judge, "model 1\nanother rubric", store).score(items)
    assert judge.asked[3:] == [item(1), item(22)]


def test_an_evaluation_reads_and_keeps_a_bounded_number_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    store, judge = MemoryStore(), FixedJudge(lambda asked: Scored(float(len(asked.completion))))
    cached = CachedJudge(judge, "model", store)
    read: list[str] = []
    for number in range(30):  # places of other evaluations
        cached.score([item(number)])
    get = store.get_json

    def recorded(key):
        read.append(key)
        return get(key)

    monkeypatch.setattr(store, "get_json", recorded)
    many = [replace(item(3), completion="x" * n) for n in range(100)]
    assert cached.score(many) == [Scored(float(n)) for n in range(100)]
    assert len(read) == 1, "of one place, one object is read"
    asked = len(judge.asked)
    assert cached.score(many[-10:]) == [Scored(float(n)) for n in range(90, 100)] and len(judge.asked) == asked
    cached.score(many[:1])
    assert len(judge.asked) == asked + 1, "the oldest scores are not kept"


def test_a_failure_is_asked_again() -> None:
    store, away = MemoryStore(), [True]
    judge = FixedJudge(lambda asked: Failed("unavailable", "") if away[0] and "2" in asked.prefix else Scored(5.0))
    cached = CachedJudge(judge, "model", store)
    assert [type(j) for j in cached.score([item(1), item(2)])] == [Scored, Failed]
    away[0] = False
    assert cached.score([item(1), item(2)]) == [Scored(5.0), Scored(5.0)]
    assert judge.asked == [item(1), item(2), item(2)]
