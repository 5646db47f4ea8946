"""Rewards of what was shown, and the advantages of a cycle's actions, compared with values computed by hand."""

import polars as pl
import pytest
from pydantic import ValidationError

from infra.records import RewardTotals, Sample
from infra.settings.schema import Reward
from tasks.rewards.reward import DrawnAction, reward_samples, reward_totals, with_rewards
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
        # What is missing to the settled line, here of 12 characters, must be typed: 2 * 8 / (8 + 12) of the worth.
        ({"accepted_characters": 8, "kept_characters": 8, "settled_token_ids": [1] * 12}, 0.8 * 1.0 - 0.25),
        ({"accepted_characters": 8, "kept_characters": 4, "settled_token_ids": [1] * 12}, 0.4 * 1.0 - 0.25),
        # A kept text with further lines is worth all of itself.
        ({"accepted_characters": 8, "kept_characters": 8, "settled_token_ids": [1] * 3}, 0.75),
        # A rejection of what was then typed costs nothing.
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 8}, 0.0),
        ({"outcome": "rejected", "accepted_characters": 0, "kept_characters": 2}, -0.25 * 0.75),
        # No response is half as sure as a response.
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 8}, 0.5 * 0.75),
        ({"outcome": "unjudged", "accepted_characters": 0, "kept_characters": 0}, 0.5 * -0.25),
    ],
)
def test_the_reward_of_each_outcome(fields, reward: float) -> None:
    assert with_rewards(sample_frame([sample(**fields)]), SETTINGS)["reward"].to_list() == pytest.approx([reward])


def test_blanks_at_the_end_of_the_settled_line_cost_no_edit() -> None:
    """As of drawn texts: nobody types them after what was shown."""
    frame = sample_frame([sample(accepted_characters=8, kept_characters=8)]).with_columns(settled=pl.lit("s" * 8 + "  \nmore"))
    assert with_rewards(frame, SETTINGS)["reward"].to_list() == pytest.approx([0.75])


def test_what_was_typed_over_before_the_text_was_shown_is_no_part_of_its_line() -> None:
    """Of a line of 12 characters, four were typed while the completion streamed; the other eight were shown and are right."""
    frame = sample_frame([sample(accepted_characters=8, kept_characters=8, settled_token_ids=[1] * 12)])
    assert with_rewards(frame.with_columns(typed_over=4), SETTINGS)["reward"].to_list() == pytest.approx([0.75])


def test_a_sample_with_an_unjudged_outcome_is_invalid() -> None:
    with pytest.raises(ValidationError, match="outcome"):
        sample(outcome="shown")


def advantages(rows: list[Sample], settings: Reward = SETTINGS, **options) -> list[float]:
    return reward_samples(sample_frame(rows), settings, {}, **options).samples["advantage"].to_list()


ACCEPTED, REJECTED = sample(id="a"), sample(id="b", outcome="rejected", accepted_characters=0)
NO_SILENCE = SETTINGS.model_copy(update={"silence": False})


def test_a_sample_of_settled_text_alone_has_no_part_in_the_rewards() -> None:
    alone = sample(id="alone", outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[7, 8])
    rewarded = reward_samples(sample_frame([ACCEPTED, alone, REJECTED]), SETTINGS, {}).samples
    assert rewarded["id"].to_list() == ["a", "alone", "b"]
    assert rewarded["reward"].to_list() == [0.75, 0.0, -0.25]
    assert rewarded["advantage"].to_list() == [0.75, 0.0, -0.25]


def test_a_served_completion_is_compared_with_silence_or_else_with_the_others() -> None:
    """Without silence it is the surrogate of all of a cycle's samples: each less the mean of the others."""
    third = sample(id="c", outcome="rejected", accepted_characters=0)
    assert advantages([ACCEPTED, REJECTED, third]) == [0.75, -0.25, -0.25]
    others = [0.75 + 0.25, -0.25 - 0.25, -0.25 - 0.25]
    assert advantages([ACCEPTED, REJECTED, third], NO_SILENCE) == pytest.approx(others)
    mean = (0.75 - 0.25 - 0.25) / 3
    assert others == pytest.approx([3 / 2 * (r - mean) for r in (0.75, -0.25, -0.25)]), "n / (n - 1) of the mean's advantages"


def test_the_written_text_is_a_member_of_the_group() -> None:
    written = [row.model_copy(update={"settled_token_ids": (1,) * 8, "kept_characters": 0}) for row in (ACCEPTED, REJECTED)]
    assert advantages(written, NO_SILENCE) == [0, 0], "a group of one served action has no variance"
    assert advantages(written) == pytest.approx([-0.25 - 0.75 / 2] * 2), "less the mean of 0.75 and of silence"
    assert advantages(written, kinds=("served",)) == pytest.approx([-0.25] * 2)


def test_where_the_line_was_complete_the_written_text_is_silence_with_its_reward() -> None:
    """The settled text begins with a line end, so it is trained on as the end token alone, which is the action of silence."""
    end, texts = {"settled_token_ids": (2,), "kept_characters": 0}, ("\nreturn total\n", "\n")
    rows = [REJECTED.model_copy(update={"completion_id": name} | end) for name in "ab"]
    frame = sample_frame(rows).with_columns(settled=pl.Series(texts))
    drawn = REJECTED.model_copy(update={"completion_id": "a/drawn-1", "outcome": "judged", "reward": -0.25})
    quiet = drawn.model_copy(update={"completion_id": "a/silence", "shown_characters": 0, "reward": 0.0})
    actions = [DrawnAction(quiet, "a", "silence", 0.9), DrawnAction(drawn, "a", "drawn", 0.125)]
    found = reward_samples(frame, SETTINGS, {}, drawn=actions)
    silence, wrong = (row.advantage for row in found.drawn)
    assert silence == pytest.approx(0.9 * 0.25), "it is right there, so it becomes likelier"
    assert wrong == pytest.approx(0.125 * (-0.25 + 0.125))
    assert found.samples["advantage"].to_list() == pytest.approx([-0.25 + 0.125, -0.25])


def test_without_silence_nothing_is_learnt_of_complete_lines() -> None:
    """Neither from the end token alone, nor by the only text drawn there that is not blank; and it is no part of a cap."""
    ids = {"c0": (2,), "c1": (2,), "w": (7, 2), "x": (7,)}  # of the last text the end is unknown
    rows = [sample(name, user=name, token_ids=[], logprobs=[], settled_token_ids=text) for name, text in ids.items()]
    frame = sample_frame(rows).with_columns(settled=pl.Series(["\nreturn\n", "\n", "x\n", "x"]))
    drawn = [sample(f"{name}/drawn-1", outcome="judged", reward=reward) for name, reward in (("c0", -0.25), ("c1", -0.05))]
    actions = [DrawnAction(one, one.completion_id[:2], "drawn", 0.125) for one in drawn]
    found = reward_samples(frame, NO_SILENCE, {"user": 0.5}, drawn=actions)
    assert found.samples["settled_token_ids"].to_list() == [[], [], [7, 2], [7]] and not found.drawn
    assert found.samples["settled_weight"].to_list() == [1.0, 1.0, 0.5, 1.0], "two write"
    assert reward_samples(frame, SETTINGS, {}).samples["settled_token_ids"].to_list() == [[2], [2], [7, 2], [7]]


def test_kinds_that_do_not_teach_are_members_of_no_group() -> None:
    assert advantages([ACCEPTED, REJECTED], kinds=("written", "drawn")) == [0, 0]


def test_a_user_has_the_share_of_served_and_drawn_actions_together() -> None:
    rows = [sample(id=f"r{n}", user=f"u{n}", project="p", credential="c") for n in range(4)]
    drawn = rows[0].model_copy(update={"completion_id": "r0/drawn-1", "outcome": "judged", "reward": -0.9})
    actions = [DrawnAction(drawn, "r0", "drawn", 1.0)] * 3
    found = reward_samples(sample_frame(rows), SETTINGS, {"user": 0.3}, drawn=actions)
    weights = dict(zip(found.samples["user"], found.samples["advantage"].abs(), strict=True))
    weights["u0"] += sum(abs(row.advantage) for row in found.drawn)
    assert len(found.drawn) == 3 and weights["u0"] == pytest.approx(0.3 * sum(weights.values()))
    assert found.drawn[0].advantage / found.samples["advantage"][0] == pytest.approx(-0.6375 / 1.425), "one factor for all"


def test_reward_totals_add_up_by_language_and_length() -> None:
    assert reward_totals([1.0, 0.5, 0.25, 9.0], [5, 4, 9, 0], ["py", "py", "py", ""]) == (
        RewardTotals(language="py", bits=3, samples=2, reward=1.5),
        RewardTotals(language="py", bits=4, samples=1, reward=0.25),
    )
