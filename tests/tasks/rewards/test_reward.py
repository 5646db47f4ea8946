"""Rewards and advantages by hand."""

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
from tests.tasks.rows import sampled

SETTINGS = Reward(accepted=0.75, per_character=0.01, max_characters=20, rejected=-0.25, nothing=-0.05)


@pytest.mark.parametrize(
    ("fields", "worth"),
    [
        ({"accepted_characters": 8}, 0.83),
        ({"shown_characters": 50, "accepted_characters": 50}, 0.95),
        ({"outcome": "rejected", "accepted_characters": 0}, -0.25),
        ({"outcome": "nothing", "shown_characters": 0, "accepted_characters": 0}, -0.05),
        ({"outcome": "partially_accepted", "accepted_characters": 2}, 0.25 * 0.75 - 0.75 * 0.25 + 0.02),
        # Of an accept counts what is kept: a quarter of it, nothing of it.
        ({"accepted_characters": 8, "kept_characters": 2}, 0.25 * 0.75 - 0.75 * 0.25 + 0.02),
        ({"accepted_characters": 8, "kept_characters": 0}, -0.25),
        ({"accepted_characters": 8, "kept_characters": 8}, 0.83),
        ({"outcome": "partially_accepted", "accepted_characters": 2, "kept_characters": 8}, 0.25 * 0.75 - 0.75 * 0.25 + 0.02),
        # A rejection of what was then typed costs nothing.
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 8}, 0.0),
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 2}, -0.25 * 0.75),
        # No response is half as sure as a response.
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 8}, 0.5 * 0.75),
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 0}, 0.5 * -0.25),
    ],
)
def test_worth(fields, worth: float) -> None:
    assert with_advantages(sampled([sample(**fields)]), SETTINGS)["reward"].to_list() == pytest.approx([worth])


def test_what_nobody_judged_is_never_rewarded() -> None:
    with pytest.raises(ValidationError, match="outcome"):
        sample(outcome="shown")


def test_a_sample_of_settled_text_alone_has_no_part_in_the_rewards() -> None:
    alone = sample(id="alone", outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[7, 8])
    judged = [sample(id="a"), sample(id="b", outcome="rejected", accepted_characters=0)]
    rewarded = with_advantages(sampled([judged[0], alone, judged[1]]), RAW)
    expected = with_advantages(sampled(judged), RAW)
    assert rewarded["id"].to_list() == ["a", "alone", "b"]
    assert rewarded["advantage"].to_list() == [expected["advantage"][0], 0.0, expected["advantage"][1]]
    assert rewarded["reward"].to_list() == [expected["reward"][0], 0.0, expected["reward"][1]]


RAW = Reward(normalise=False)


def test_advantages_by_hand() -> None:
    assert advantages([1.0, 0.0, 0.0, -1.0], [5] * 4, RAW) == [1.0, 0.0, 0.0, -1.0]
    assert advantages([3.0, 1.0], [5] * 2, RAW) == [1.0, -1.0]
    assert advantages([3.0, 1.0, 1.0, 3.0], [5] * 4, Reward()) == [1.0, -1.0, -1.0, 1.0]
    assert advantages([0.5, 0.5], [5] * 2, Reward()) == [0.0, 0.0]
    assert advantages([], [], Reward()) == []


def test_a_baseline_by_length_pays_for_being_right_and_not_for_being_short() -> None:
    rewards, lengths = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0], [2, 3, 2, 3, 8, 9, 12, 15]
    by_length = RAW.model_copy(update={"baseline_by_length": 1.0})
    found = advantages(rewards, lengths, by_length)
    assert found == [0.25, 0.25, 0.25, -0.75, 0.75, -0.25, -0.25, -0.25]
    assert sum(found[:4]) == sum(found[4:]) == 0
    plain = advantages(rewards, lengths, RAW)
    assert sum(plain[:4]) == 1.0
    half = advantages(rewards, lengths, RAW.model_copy(update={"baseline_by_length": 0.5}))
    assert half == [(a + b) / 2 for a, b in zip(found, plain, strict=True)]


NOTHING_OFF = RAW.model_copy(update={"baseline": "none"})


def test_without_a_baseline_a_reward_is_the_advantage() -> None:
    assert advantages([1.0, 0.0], [5] * 2, NOTHING_OFF) == [1.0, 0.0]
    assert advantages([-0.25] * 3, [2, 5, 9], NOTHING_OFF) == [-0.25] * 3
    assert advantages([-0.25] * 3, [2, 5, 9], Reward(baseline="none")) == [-0.25] * 3, "equal rewards have no spread to divide by"
    assert advantages([3.0, 1.0], [5] * 2, Reward(baseline="none")) == [3.0, 1.0]  # over a deviation of 1


MANY = LEAST_OF_A_LANGUAGE
RUNNING = RAW.model_copy(update={"baseline": "running"})
PAST = [
    RewardTotals(bits=3, samples=3, reward=1.5),
    RewardTotals(bits=4, samples=2, reward=0.0),
    RewardTotals(bits=3, samples=1, reward=-0.5),
]


def test_a_running_baseline_is_the_mean_of_earlier_cycles() -> None:
    # 6 earlier samples that earned 1 in all.
    assert advantages([-0.25, 1.0], [5, 9], RUNNING, PAST) == pytest.approx([-0.25 - 1 / 6, 1 - 1 / 6])
    alike = RUNNING.model_copy(update={"baseline_by_length": 1.0})
    # Of 4 to 7 tokens 1 in 4 samples, of 8 to 15 nothing in 2; one token was never seen.
    assert advantages([1.0, 1.0, 1.0], [5, 9, 1], alike, PAST) == pytest.approx([0.75, 1.0, 1 - 1 / 6])


def test_a_running_baseline_without_earlier_cycles_is_the_batch_s_own() -> None:
    assert advantages([3.0, 1.0], [5, 9], RUNNING) == advantages([3.0, 1.0], [5, 9], RAW) == [1.0, -1.0]


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 40), st.sampled_from(["", "py", "rs"])), min_size=1, max_size=50),
    st.sampled_from([1, 10, MANY]),
)
def test_what_a_cycle_keeps_of_its_rewards_has_their_means(judged: list[tuple[float, int, str]], times: int) -> None:
    rewards, lengths, languages = map(list, zip(*judged * times, strict=True))
    for share, by_language in product((0.0, 1.0), (False, True)):
        mean = RAW.model_copy(update={"baseline_by_length": share, "baseline_by_language": by_language})
        running = mean.model_copy(update={"baseline": "running"})
        kept = reward_totals(rewards, lengths, languages)
        expected = advantages(rewards, lengths, mean, languages=languages)
        assert advantages(rewards, lengths, running, kept, languages) == pytest.approx(expected, abs=1e-9)


BY_LANGUAGE = RAW.model_copy(update={"baseline_by_language": True})


def test_a_baseline_by_language_compares_completions_of_one_language() -> None:
    rewards = [1.0] * MANY + [0.0] * MANY  # one is always accepted, the other never
    languages = ["py"] * MANY + ["rs"] * MANY
    lengths = [5] * len(rewards)
    assert set(advantages(rewards, lengths, RAW, languages=languages)) == {0.5, -0.5}
    assert set(advantages(rewards, lengths, BY_LANGUAGE, languages=languages)) == {0.0}
    assert advantages(rewards, lengths, BY_LANGUAGE) == advantages(rewards, lengths, RAW), "none is told"


def test_rare_languages_are_compared_with_each_other_and_with_what_is_told_of_none() -> None:
    rewards, languages = [1.0] * MANY + [3.0, 1.0, 2.0], ["py"] * MANY + ["rs", "go", ""]
    found = advantages(rewards, [5] * len(rewards), BY_LANGUAGE, languages=languages)
    assert found == [0.0] * MANY + [1.0, -1.0, 0.0]


def test_a_running_baseline_by_language_and_length() -> None:
    running = BY_LANGUAGE.model_copy(update={"baseline": "running", "baseline_by_length": 1.0})
    past = [
        RewardTotals(language="py", bits=3, samples=MANY, reward=MANY * 0.5),
        RewardTotals(language="py", bits=4, samples=MANY, reward=0.0),
        RewardTotals(bits=3, samples=10, reward=10.0),
    ]
    found = advantages([1.0] * 5, [5, 9, 1, 5, 20], running, past, ["py", "py", "py", "rs", ""])
    # Of a length that Python never had: its own mean, a quarter. Rust is rare, and so with what is told of none: 1.
    assert found == pytest.approx([0.5, 1.0, 0.75, 0.0, 0.0])


def test_a_completion_s_weight_falls_with_its_length() -> None:
    equal = RAW.model_copy(update={"length_exponent": 1.0})
    assert advantages([1.0, -1.0], [2, 8], equal) == [2.5, -0.625]  # times its tokens: 5 and -5
    assert advantages([1.0, -1.0], [0, 10], equal) == [5.0, -0.5]


@given(st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 40)), min_size=2, max_size=50))
def test_advantages_are_centred_keep_the_order_and_have_unit_spread(judged: list[tuple[float, int]]) -> None:
    rewards, lengths = map(list, zip(*judged, strict=True))
    found = advantages(rewards, lengths, Reward())
    assert math.fsum(found) == pytest.approx(0, abs=1e-6)
    spread = math.sqrt(math.fsum(a * a for a in found) / len(found))
    assert spread == pytest.approx(1, abs=1e-6) or spread < 1e-8
    in_order = [advantage for _, advantage in sorted(zip(rewards, found, strict=True))]
    assert in_order == sorted(in_order)
    by_length = advantages(rewards, lengths, RAW.model_copy(update={"baseline_by_length": 1.0}))
    for bits in {length.bit_length() for length in lengths}:
        alike = [a for a, length in zip(by_length, lengths, strict=True) if length.bit_length() == bits]
        assert math.fsum(alike) == pytest.approx(0, abs=1e-6)


def test_samples_carry_both() -> None:
    found = with_advantages(sampled([sample("1"), sample("2", outcome="rejected", accepted_characters=0)]), SETTINGS)
    assert found["reward"].to_list() == pytest.approx([0.83, -0.25])
    assert found["advantage"].to_list() == pytest.approx([1.0, -1.0])


def test_group_advantages_by_hand() -> None:
    # Rewards 1 and 0 of the first group: mean 1/2, deviation 1/2. 1, 1, 4 of the second: mean 2, deviation sqrt(2).
    found = group_advantages([1.0, 1.0, 0.0, 1.0, 4.0], ["a", "b", "a", "b", "b"])
    assert found == pytest.approx([1.0, -1 / 2**0.5, -1.0, -1 / 2**0.5, 2 / 2**0.5])


def test_a_group_of_one_reward_has_no_advantage() -> None:
    assert group_advantages([0.3, 0.3, 0.3, 0.9], ["a", "a", "a", "b"]) == [0, 0, 0, 0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), min_size=1, max_size=30))
def test_groups_do_not_see_one_another(rows: list[tuple[str, float]]) -> None:
    groups, rewards = [g for g, _ in rows], [r for _, r in rows]
    whole = group_advantages(rewards, groups)
    for group in set(groups):
        alone = [i for i, g in enumerate(groups) if g == group]
        assert [whole[i] for i in alone] == group_advantages([rewards[i] for i in alone], [0] * len(alone))
        assert sum(whole[i] for i in alone) == pytest.approx(0, abs=1e-6)


def test_the_estimator_is_a_setting() -> None:
    made = sampled([sample(prompt_token_ids=(i // 2,), outcome="accepted" if i in (0, 2, 3) else "rejected") for i in range(6)])
    group = with_advantages(made, Reward(estimator="group"))["advantage"].to_list()
    assert group == pytest.approx([1, -1, 0, 0, 0, 0])
    assert with_advantages(made, Reward())["advantage"].to_list() == pytest.approx([1, -1, 1, 1, -1, -1])
