"""The decision to show: features, chances, the beginning that is worth most, and past acceptance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.model.past_acceptance import LEAST, MOST, PastAcceptance
from infra.model.showing import FEATURES, TOKEN_FEATURES, Decision, Estimate, Place, decide, place_features, token_features


def made(bias: float = 0.0, **weights: float) -> Estimate:
    """An estimate with these weights, and 0 for all others."""
    zeros = (0.0,) * len(FEATURES)
    return Estimate(
        features=FEATURES,
        means=zeros,
        scales=(1.0,) * len(FEATURES),
        weights=tuple(weights.get(name, 0.0) for name in FEATURES),
        bias=bias,
        temperature=0.1,
        acceptance=0.5,
    )


def test_the_features_of_tokens_are_those_computed_by_hand() -> None:
    rows = token_features([-0.5, -1.0, 0.0], [4, 9, 9])
    named = {name: rows[:, i] for i, name in enumerate(TOKEN_FEATURES)}
    assert named["surprise"] == pytest.approx(np.log([0.5, 1.5, 1.5]), abs=1e-6)
    assert named["worst_surprise"] == pytest.approx(np.log([0.5, 1.0, 1.0]), abs=1e-6)
    assert named["last_surprise"][2] == pytest.approx(math.log(1e-7))
    assert named["probability"] == pytest.approx(np.exp([-0.5, -1.5, -1.5]))
    assert named["characters"] == pytest.approx([0.2, 0.45, 0.45])
    assert named["no_text"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("prefix", "suffix", "flags"),
    [
        ("a = 1\n    ", "\nb", (1, 0, 0)),
        ("a = f", ")\n", (0, 1, 1)),
        ("a = f(", "", (0, 0, 0)),
        ("", "\n", (1, 0, 0)),
    ],
)
def test_the_features_of_a_place(prefix: str, suffix: str, flags: tuple[int, ...]) -> None:
    assert place_features(Place(prefix, suffix), 0.5) == (*flags, 0.0, 0.0)


def test_unknown_acceptance_is_the_one_of_all_and_known_acceptance_counts() -> None:
    estimate = made(user_acceptance=1.0)
    (unknown,), (fond,) = (estimate.at(Place("", "", "", share)).chances([0.0], [3]) for share in (None, 0.9))
    assert unknown == pytest.approx(0.5) and fond == pytest.approx(0.9)


def test_a_language_moves_the_chance() -> None:
    estimate = made().model_copy(update={"languages": {"go": 2.0}})
    chances = [estimate.at(Place("", "", name)).chances([0.0], [1])[0] for name in ("go", "zig")]
    assert chances == pytest.approx([1 / (1 + math.exp(-2)), 0.5])


def test_an_estimate_of_other_features_is_refused() -> None:
    fields = made().model_dump()
    with pytest.raises(ValidationError, match=r"features: expected surprise.*run a cycle"):
        Estimate.model_validate(fields | {"features": FEATURES[:-1]})
    with pytest.raises(ValidationError, match=f"expected {len(FEATURES)} numbers each"):
        Estimate.model_validate(fields | {"weights": (1.0,)})


def test_shown_is_the_beginning_worth_most() -> None:
    chances, ends, text = np.array([0.9, 0.8, 0.1]), [5, 10, 12], "abcdefghijkl"
    assert decide(chances, ends, text, 0.5, 3) == Decision(2, 3, True, 0.8)  # 4.0, 7.5, 0.7
    assert decide(chances, ends, text, 8.0, 3).shown == 0  # none is worth so much
    assert decide(chances, ends, text, 8.0, 3).chance == 0.8  # but the best is known


def test_without_cuts_all_is_shown_where_a_beginning_is_worth_its_price() -> None:
    chances, ends, text = np.array([0.9, 0.8, 0.1]), [5, 10, 12], "abcdefghijkl"
    assert decide(chances, ends, text, 0.5, 24, cuts=False) == Decision(3, 3, False, 0.1), "the shown text's chance"
    assert decide(chances, ends, text, 8.0, 3, cuts=False) == Decision(0, 3, True, 0.8), "no beginning is worth so much"
    assert decide(np.array([0.9, 0.01]), [8, 12], "a" * 12, 0.5, 4, cuts=False) == Decision(2, 2, False, 0.01)
    assert decide(np.array([0.01, 0.9]), [4, 8], "a" * 8, 1.0, 4, cuts=False) == Decision(0, 1, True, 0.01), (
        "sampling ended before"
    )


def test_blanks_are_worth_nothing() -> None:
    assert decide(np.array([0.9]), [4], "    ", 0.0, 8).shown == 0
    assert decide(np.array([0.9, 0.89]), [3, 7], "abc    ", 0.1, 2).shown == 1  # blanks at the end add nothing


def test_sampling_ends_where_no_more_can_be_expected() -> None:
    chances, ends = np.array([0.9, 0.01]), [8, 12]
    assert decide(chances, ends, "a" * 12, 0.5, 4) == Decision(1, 2, True, 0.9)  # at most 0.01 * 20
    assert not decide(np.array([0.9, 0.8]), ends, "a" * 12, 0.5, 8).ended
    assert decide(np.array([0.01]), [4], "a" * 4, 1.0, 8).ended  # nothing is shown, nor will be


rows = st.lists(st.tuples(st.floats(-9, 0), st.integers(0, 9)), min_size=1, max_size=12)


@given(rows, st.floats(-2, 2), st.floats(0, 3), st.booleans())
def test_what_is_shown_only_grows_and_does_not_depend_on_how_the_tokens_arrive(
    tokens: list[tuple[float, int]], bias: float, price: float, cuts: bool
) -> None:
    logprobs, ends = [p for p, _ in tokens], np.cumsum([n for _, n in tokens]).tolist()
    text, chance = "x" * ends[-1], made(bias, surprise=-0.5, log_characters=-0.2).at(Place("", ""))
    whole = decide(chance.chances(logprobs, ends), ends, text, price, 12, cuts=cuts)
    shown = 0
    for count in range(1, len(tokens) + 1):
        so_far = chance.chances(logprobs[:count], ends[:count])
        step = decide(so_far, ends[:count], text[: ends[count - 1]], price, 12, cuts=cuts)
        assert step.shown >= shown
        shown = step.shown
        if step.ended:
            break
    assert (step.shown, step.chance, step.sampled) == (whole.shown, pytest.approx(whole.chance), whole.sampled)
    values = [len(text[:end]) * c - price for end, c in zip(ends, chance.chances(logprobs, ends), strict=True)][: whole.sampled]
    best = values.index(max(values)) + 1 if cuts else whole.sampled
    assert whole.shown == (best if max(values) > 0 else 0)


@given(rows, st.floats(0, 2), st.floats(0, 2))
def test_a_higher_price_never_shows_a_completion_that_a_lower_one_holds_back(
    tokens: list[tuple[float, int]], one: float, more: float
) -> None:
    logprobs, ends = [p for p, _ in tokens], np.cumsum([n for _, n in tokens]).tolist()
    chances = made(surprise=-0.5).at(Place("", "")).chances(logprobs, ends)
    low, high = (decide(chances, ends, "x" * ends[-1], price, 12) for price in (one, one + more))
    assert bool(low.shown) >= bool(high.shown)


def test_acceptance_is_unknown_until_a_project_has_judged_enough_and_a_users_is_drawn_to_it() -> None:
    past = PastAcceptance()
    for number in range(LEAST):
        assert past.shares("web", "ann") == (None, None)
        past.add("web", "ann", number < 5)
    assert past.shares("web", "ann") == (0.5, 0.5)
    for _ in range(10):
        past.add("web", "bob", True)
    assert past.shares("web", "bob") == (pytest.approx((10 + 10 * 0.75) / 20), 0.75)
    assert past.shares("web", "new") == (0.75, 0.75) and past.shares("other", "ann") == (None, None)


def test_what_was_accepted_long_ago_counts_less() -> None:
    past = PastAcceptance()
    for _ in range(MOST):
        past.add("web", "ann", True)
    for _ in range(MOST):
        past.add("web", "ann", False)
    share = past.shares("web", "ann")[1]
    assert share is not None and share < 0.35
