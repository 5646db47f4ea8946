"""The advantages of the actions of places, compared with values computed by hand and with a slow definition."""

from statistics import mean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings.schema import Reward
from tasks.rewards.actions import LEAST_VARIANCE, Action, advantages, decide, worth

REWARD = Reward(accepted=0.75, rejected=-0.05)
EVERY = ("written", "served", "drawn")


def drawn(place: str, *rewards: float) -> list[Action]:
    return [Action(place, "drawn", reward, 1 / len(rewards)) for reward in rewards]


def test_a_group_equals_values_computed_by_hand() -> None:
    texts = [*drawn("a", 0.7, -0.05, -0.05, -0.05), Action("a", "silence", 0.0, share=0.1, blank=True)]
    found = decide([Action("a", "served", 0.35)], texts, {"a"}, REWARD, EVERY)
    total = 0.35 + 0.7 - 3 * 0.05 + 0.0 + 0.75
    assert found == pytest.approx(
        [
            0.35 - (total - 0.35) / 6,
            0.25 * (0.7 - (total - 0.7) / 6),
            *[0.25 * (-0.05 - (total + 0.05) / 6)] * 3,
            0.1 * (0.0 - total / 6),
        ]
    )


def test_equal_draws_as_one_action_have_the_sum_of_their_advantages() -> None:
    apart = advantages(drawn("a", 0.7, 0.7, 0.7, -0.05))
    merged = advantages([Action("a", "drawn", 0.7, 0.75, copies=3), Action("a", "drawn", -0.05, 0.25)])
    assert merged == pytest.approx([sum(apart[:3]), apart[3]])
    same = [Action("a", "drawn", 0.7, 1.0, copies=4)]
    assert advantages([*same, *drawn("b", 0.1)]) == [0, 0], "a group of four is not alone"


def test_a_group_whose_sampled_rewards_agree_teaches_nothing() -> None:
    assert decide([], drawn("a", 0.7, 0.7, 0.7), {"a"}, REWARD.model_copy(update={"silence": False}), EVERY) == [0, 0, 0]
    quiet = [*drawn("a", -0.05, -0.05), Action("a", "silence", 0.0, share=0.2, blank=True)]
    wrong, _, silence = decide([], quiet, {"a"}, REWARD, EVERY)
    assert wrong < 0 and silence / 0.2 > wrong / 0.5, "where every draw is wrong, silence is the better of them"


def test_texts_alone_at_their_places_are_compared_with_each_other_if_they_were_shown() -> None:
    plain = REWARD.model_copy(update={"silence": False})
    served = [Action(name, "served", reward) for name, reward in (("a", 0.7), ("b", -0.05))]
    alone = [action for name, reward in (("c", 0.7), ("d", -0.05), ("e", -0.05)) for action in drawn(name, reward)]
    found = decide(served, alone, (), plain, EVERY)
    assert found == pytest.approx([0.75, -0.75, 0, 0, 0]), "nobody saw the drawn ones, and their places differ"


def test_without_silence_blank_texts_are_members_of_no_group() -> None:
    plain = REWARD.model_copy(update={"silence": False})
    blank = Action("a", "drawn", 0.0, 0.5, blank=True)
    assert decide([], [*drawn("a", 0.7, -0.05), blank], {"a"}, plain, EVERY)[-1] == 0
    with_blank = decide([], [*drawn("a", 0.7, -0.05), blank], {"a"}, plain, EVERY)[:2]
    assert with_blank == decide([], drawn("a", 0.7, -0.05), {"a"}, plain, EVERY)


REWARDS = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(st.none() | st.floats(-1, 1), REWARDS | st.just([]), st.booleans()), min_size=1, max_size=6), st.booleans()
)
def test_advantages_equal_their_definition_and_do_not_depend_on_other_places(places, silence: bool) -> None:
    served = [Action(str(n), "served", reward) for n, (reward, _, _) in enumerate(places) if reward is not None]
    texts = [action for n, (_, rewards, _) in enumerate(places) for action in drawn(str(n), *rewards)]
    written = {str(n) for n, (_, _, known) in enumerate(places) if known}
    settings = REWARD.model_copy(update={"silence": silence})
    found = decide(served, texts, written, settings, EVERY)
    members = [*served, *texts]
    alone = [m.reward for m in served if expected_group(m.place, members, written, settings) == [m.reward]]
    for member, advantage in zip(members, found, strict=True):
        group = expected_group(member.place, members, written, settings)
        if len(group) == 1 and member.kind == "served":
            sampled = group = alone
        else:
            sampled = [m.reward for m in members if m.place == member.place] + [0.0] * silence
        others = list(group)
        others.remove(member.reward)
        taught = len(group) > 1 and pvariance(sampled) > LEAST_VARIANCE
        if abs(pvariance(sampled) - LEAST_VARIANCE) > 1e-9:
            expected = member.share * (member.reward - mean(others)) if taught else 0.0
            assert advantage == pytest.approx(expected, abs=1e-9)


def expected_group(place: str, members: list[Action], written: set[str], settings: Reward) -> list[float]:
    own = [m.reward for m in members if m.place == place]
    return own + [settings.accepted] * (place in written) + [0.0] * settings.silence


def test_worth_is_the_share_that_two_texts_have_in_common() -> None:
    assert worth(8, 8, 8) == 1.0
    assert worth(1, 1, 19) == pytest.approx(0.1), "one right character saves hardly anything"
    assert worth(8, 32, 8) == pytest.approx(0.4), "what is appended must be deleted"
    assert worth(0, 5, 5) == worth(0, 0, 0) == 0.0
