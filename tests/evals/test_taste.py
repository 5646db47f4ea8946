"""Suggestions that developers accept or reject, by hand-made examples."""

import random
from dataclasses import replace

import pytest

from evals.developers.draws import taste_of
from evals.developers.taste import Taste, draw_taste, opinion_on

PLAIN = Taste(
    strictness=0.8,
    least=3,
    least_whole=2,
    longest=60,
    dislikes_overrun=False,
    dislikes_half_words=False,
    dislikes_comments=False,
    patience=0.9,
    noise=0.0,
    activity=1.0,
)
TRUTH = "self.name = name"


@pytest.mark.parametrize(
    ("changes", "shown", "truth", "accepted", "reason"),
    [
        ({}, TRUTH, TRUTH, True, "whole"),
        ({}, TRUTH + "  ", TRUTH, True, "whole"),
        ({"least": 8}, "):", "):", True, "whole"),
        ({}, ")", ")", False, "short"),
        ({"least_whole": 1}, ")", ")", True, "whole"),
        ({}, "self.name", TRUTH, True, "start"),
        ({}, "se", TRUTH, False, "short"),
        ({"least": 2}, "se", TRUTH, True, "start"),
        ({"least": 2, "dislikes_half_words": True}, "se", TRUTH, False, "half_word"),
        ({"dislikes_half_words": True}, "self.name", TRUTH, True, "start"),
        ({}, "self.nope", TRUTH, False, "wrong"),  # 6 of 9
        ({"strictness": 0.6}, "self.nope", TRUTH, True, "start"),
        ({"strictness": 1.0}, "self.name = nam!", TRUTH, False, "wrong"),
        ({"strictness": 0.7}, "return x\nx", "return x", True, "start"),
        ({"strictness": 0.7, "dislikes_overrun": True}, "return x\nx", "return x", False, "overruns"),
        ({"strictness": 0.6, "dislikes_comments": True}, "return # no", "return x", False, "comment"),
        ({"longest": 8}, "self.name", TRUTH, False, "long"),
        ({"longest": 8}, TRUTH, TRUTH, True, "whole"),
        ({}, "other", TRUTH, False, "wrong"),
    ],
)
def test_the_opinion_of_an_example(changes, shown, truth, accepted, reason):
    opinion = opinion_on(replace(PLAIN, **changes), shown, truth)
    assert (opinion.accepted, opinion.reason) == (accepted, reason)


def test_tastes_depend_on_seed_and_user():
    assert taste_of(1, 2) == taste_of(1, 2)
    assert len({taste_of(1, user) for user in range(50)}) == 50
    assert taste_of(1, 2) != taste_of(2, 2)


def test_tastes_are_within_the_documented_ranges():
    tastes = [draw_taste(random.Random(i)) for i in range(500)]
    assert all(0.6 <= t.strictness <= 1 and 1 <= t.least <= 8 and 0.7 <= t.patience <= 0.95 for t in tastes)
    assert all(0.01 <= t.noise <= 0.04 for t in tastes)
    assert 0.4 < sum(t.dislikes_overrun for t in tastes) / 500 < 0.6
