"""Rewards and advantages, compared with values computed by hand."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.records import RewardTotals
from infra.settings.schema import Reward
from tasks.rewards.reward import LEAST_OF_A_LANGUAGE, advantages, group_advantages, reward_totals, with_advantages
from tests.tasks.made import sample
from tests.tasks.rows import sample_frame

SETTINGS = Reward(accepted=0.75, rejected=-0.25)


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({"accepted_characters": 8}, 0.75),
        ({"shown_characters": 50, "accepted_characters": 50}, 0.75),
        ({"outcome": "rejected", "accepted_characters": 0}, -0.25),
        ({"outcome": "nothing", "shown_characters": 0, "accepted_characters": 0}, 0.0),
        ({"outcome": "partially_accepted", "accepted_characters": 2}, 0.25 * 0.75 - 0.75 * 0.25),
        # Of an accept counts what is kept: a quarter of it, nothing of it.
        ({"accepted_characters": 8, "kept_characters": 2}, 0.25 * 0.75 - 0.75 * 0.25),
        ({"accepted_characters": 8, "kept_characters": 0}, -0.25),
        ({"accepted_characters": 8, "kept_characters": 8}, 0.75),
        ({"outcome": "partially_accepted", "accepted_characters": 2, "kept_characters": 8}, 0.25 * 0.75 - 0.75 * 0.25),
        # A rejection of what was then typed costs nothing.
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 8}, 0.0),
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 2}, -0.25 * 0.75),
        # No response is half as sure as a response.
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 8}, 0.5 * 0.75),
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 0}, 0.5 * -0.25),
    ],
)
def test_the_reward_of_each_outcome(fields, reward: float) -> None:
    assert with_advantages(sample_frame([sample(**fields)]), SETTINGS)["reward"].to_list() == pytest.approx([reward])


def test_a_sample_with_an_unjudged_outcome_is_invalid() -> None:
    with pytest.raises(ValidationError, match="outcome"):
        sample(outcome="shown")


def test_a_sample_of_settled_text_alone_has_no_part_in_the_rewards() -> None:
    alone = sample(id="alone", outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[7, 8])
    judged = [sample(id="a"), sample(id="b", outcome="rejected", accepted_characters=0)]
    rewarded = with_advantages(sample_frame([judged[0], alone, judged[1]]), UNSCALED)
    expected = with_advantages(sample_frame(judged), UNSCALED)
    assert rewarded["id"].to_list() == ["a", "alone", "b"]
    assert rewarded["advantage"].to_list() == [expected["advantage"][0], 0.0, expected["advantage"][1]]
    assert rewarded["reward"].to_list() == [expected["reward"][0], 0.0, expected["reward"][1]]


UNSCALED = Reward(normalise=False)


def test_advantages_equal_values_computed_by_hand() -> None:
    assert advantages([1.0, 0.0, 0.0, -1.0], [5] * 4, UNSCALED) == [1.0, 0.0, 0.0, -1.0]
    assert advantages([3.0, 1.0], [5] * 2, UNSCALED) == [1.0, -1.0]
    assert advantages([3.0, 1.0, 1.0, 3.0], [5] * 4, Reward()) == [1.0, -1.0, -1.0, 1.0]
    assert advantages([0.5, 0.5], [5] * 2, Reward()) == [0.0, 0.0]
    assert advantages([], [], Reward()) == []


def test_a_baseline_by_length_rewards_accepts_and_not_short_completions() -> None:
    rewards, lengths = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0], [2, 3, 2, 3, 8, 9, 12, 15]
    by_length = UNSCALED.model_copy(update={"baseline_by_length": 1.0})
    values = advantages(rewards, lengths, by_length)
    assert values == [0.25, 0.25, 0.25, -0.75, 0.75, -0.25, -0.25, -0.25]
    assert sum(values[:4]) == sum(values[4:]) == 0
    unscaled = advantages(rewards, lengths, UNSCALED)
    assert sum(unscaled[:4]) == 1.0
    half = advantages(rewards, lengths, UNSCALED.model_copy(update={"baseline_by_length": 0.5}))
    assert half == [(a + b) / 2 for a, b in zip(values, unscaled, strict=True)]


NO_BASELINE = UNSCALED.model_copy(update={"baseline": "none"})


def test_without_a_baseline_the_advantage_is_the_reward() -> None:
    assert advantages([1.0, 0.0], [5] * 2, NO_BASELINE) == [1.0, 0.0]
    assert advantages([-0.25] * 3, [2, 5, 9], NO_BASELINE) == [-0.25] * 3
    assert advantages([-0.25] * 3, [2, 5, 9], Reward(baseline="none")) == [-0.25] * 3, "equal rewards have no spread to divide by"
    assert advantages([3.0, 1.0], [5] * 2, Reward(baseline="none")) == [3.0, 1.0]  # divided by a standard deviation of 1


MANY = LEAST_OF_A_LANGUAGE
RUNNING = UNSCALED.model_copy(update={"baseline": "running"})
PAST = [
    RewardTotals(bits=3, samples=3, reward=1.5),
    RewardTotals(bits=4, samples=2, reward=0.0),
    RewardTotals(bits=3, samples=1, reward=-0.5),
]


def test_a_running_baseline_is_the_mean_of_earlier_cycles() -> None:
    # 6 earlier samples with a total reward of 1.
    assert advantages([-0.25, 1.0], [5, 9], RUNNING, PAST) == pytest.approx([-0.25 - 1 / 6, 1 - 1 / 6])
    by_length = RUNNING.model_copy(update={"baseline_by_length": 1.0})
    # With 4 to 7 tokens a reward of 1 in 4 samples, with 8 to 15 tokens 0 in 2 samples; no sample had one token.
    assert advantages([1.0, 1.0, 1.0], [5, 9, 1], by_length, PAST) == pytest.approx([0.75, 1.0, 1 - 1 / 6])


def test_a_running_baseline_without_earlier_cycles_is_the_mean_of_the_batch() -> None:
    assert advantages([3.0, 1.0], [5, 9], RUNNING) == advantages([3.0, 1.0], [5, 9], UNSCALED) == [1.0, -1.0]


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 40), st.sampled_from(["", "py", "rs"])), min_size=1, max_size=50),
    st.sampled_from([1, 10, MANY]),
)
def test_reward_totals_give_the_same_baselines_as_the_rewards(rows: list[tuple[float, int, str]], times: int) -> None:
    rewards, lengths, languages = map(list, zip(*rows * times, strict=True))
    for share, by_language in product((0.0, 1.0), (False, True)):
        mean = UNSCALED.model_copy(update={"baseline_by_length": share, "baseline_by_language": by_language})
        running = mean.model_copy(update={"baseline": "running"})
        totals = reward_totals(rewards, lengths, languages)
        expected = advantages(rewards, lengths, mean, languages=languages)
        assert advantages(rewards, lengths, running, totals, languages) == pytest.approx(expected, abs=1e-9)


BY_LANGUAGE = UNSCALED.model_copy(update={"baseline_by_language": True})


def test_a_baseline_by_language_compares_completions_of_one_language() -> None:
    rewards = [1.0] * MANY + [0.0] * MANY  # the first language is always accepted, the second never
    languages = ["py"] * MANY + ["rs"] * MANY
    lengths = [5] * len(rewards)
    assert set(advantages(rewards, lengths, UNSCALED, languages=languages)) == {0.5, -0.5}
    assert set(advantages(rewards, lengths, BY_LANGUAGE, languages=languages)) == {0.0}
    assert advantages(rewards, lengths, BY_LANGUAGE) == advantages(rewards, lengths, UNSCALED), (
        "without languages all samples share one baseline"
    )


def test_rare_and_unknown_languages_share_a_baseline() -> None:
    rewards, languages = [1.0] * MANY + [3.0, 1.0, 2.0], ["py"] * MANY + ["rs", "go", ""]
    values = advantages(rewards, [5] * len(rewards), BY_LANGUAGE, languages=languages)
    assert values == [0.0] * MANY + [1.0, -1.0, 0.0]


def test_a_running_baseline_uses_language_and_length() -> None:
    running = BY_LANGUAGE.model_copy(update={"baseline": "running", "baseline_by_length": 1.0})
    past = [
        RewardTotals(language="py", bits=3, samples=MANY, reward=MANY * 0.5),
        RewardTotals(language="py", bits=4, samples=MANY, reward=0.0),
        RewardTotals(bits=3, samples=10, reward=10.0),
    ]
    values = advantages([1.0] * 5, [5, 9, 1, 5, 20], running, past, ["py", "py", "py", "rs", ""])
    # For a length without Python samples: Python's mean, a quarter. Rust is rare, so it shares the mean of unknown languages: 1.
    assert values == pytest.approx([0.5, 1.0, 0.75, 0.0, 0.0])


def test_the_length_exponent_lowers_the_weight_of_long_completions() -> None:
    equal = UNSCALED.model_copy(update={"length_exponent": 1.0})
    assert advantages([1.0, -1.0], [2, 8], equal) == [2.5, -0.625]  # times its tokens: 5 and -5
    assert advantages([1.0, -1.0], [0, 10], equal) == [5.0, -0.5]


@given(st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 40)), min_size=2, max_size=50))
def test_advantages_are_centred_keep_the_order_and_have_unit_spread(rows: list[tuple[float, int]]) -> None:
    rewards, lengths = map(list, zip(*rows, strict=True))
    values = advantages(rewards, lengths, Reward())
    assert math.fsum(values) == pytest.approx(0, abs=1e-6)
    spread = math.sqrt(math.fsum(a * a for a in values) / len(values))
    assert spread == pytest.approx(1, abs=1e-6) or spread < 1e-8
    in_order = [advantage for _, advantage in sorted(zip(rewards, values, strict=True))]
    assert in_order == sorted(in_order)
    by_length = advantages(rewards, lengths, UNSCALED.model_copy(update={"baseline_by_length": 1.0}))
    for bits in {length.bit_length() for length in lengths}:
        same_length = [a for a, length in zip(by_length, lengths, strict=True) if length.bit_length() == bits]
        assert math.fsum(same_length) == pytest.approx(0, abs=1e-6)


def test_samples_get_reward_and_advantage() -> None:
    frame = with_advantages(sample_frame([sample("1"), sample("2", outcome="rejected", accepted_characters=0)]), SETTINGS)
    assert frame["reward"].to_list() == pytest.approx([0.75, -0.25])
    assert frame["advantage"].to_list() == pytest.approx([1.0, -1.0])


def test_group_advantages_equal_values_computed_by_hand() -> None:
    # Rewards 1 and 0 of the first group: mean 1/2, deviation 1/2. 1, 1, 4 of the second: mean 2, deviation sqrt(2).
    values = group_advantages([1.0, 1.0, 0.0, 1.0, 4.0], ["a", "b", "a", "b", "b"])
    assert values == pytest.approx([1.0, -1 / 2**0.5, -1.0, -1 / 2**0.5, 2 / 2**0.5])


def test_a_group_of_one_reward_has_no_advantage() -> None:
    assert group_advantages([0.3, 0.3, 0.3, 0.9], ["a", "a", "a", "b"]) == [0, 0, 0, 0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), min_size=1, max_size=30))
def test_group_advantages_do_not_depend_on_other_groups(rows: list[tuple[str, float]]) -> None:
    groups, rewards = [g for g, _ in rows], [r for _, r in rows]
    together = group_advantages(rewards, groups)
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        assert [together[i] for i in members] == group_advantages([rewards[i] for i in members], [0] * len(members))
        assert sum(together[i] for i in members) == pytest.approx(0, abs=1e-6)


def test_the_setting_selects_the_estimator() -> None:
    frame = sample_frame(
        [sample(prompt_token_ids=(i // 2,), outcome="accepted" if i in (0, 2, 3) else "rejected") for i in range(6)]
    )
    group = with_advantages(frame, Reward(estimator="group"))["advantage"].to_list()
    assert group == pytest.approx([1, -1, 0, 0, 0, 0])
    assert with_advantages(frame, Reward())["advantage"].to_list() == pytest.approx([1, -1, 1, 1, -1, -1])
