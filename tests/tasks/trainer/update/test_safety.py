"""Harmful updates and steps are refused with a reason."""

import math

import pytest
import torch

from infra.records import Sample
from tasks.trainer.update.reports import Sums, Totals
from tasks.trainer.update.safety import Drift, HarmfulUpdate, agreement, check_agreement, empty_refusal, odd_token, step_refusal


def sample(advantage: float, reward: float = -0.05, outcome: str = "rejected") -> Sample:
    return Sample(
        completion_id="c", user="u", policy_version="1", prompt_token_ids=(1,), token_ids=(2,), logprobs=(-1.0,), temperature=1.0,
        outcome=outcome, shown_characters=1, accepted_characters=0, reward=reward, advantage=advantage,
    )  # fmt: skip


def test_a_mean_gap_above_its_bound_is_refused():
    check_agreement(agreement([0.0, 0.2]), 0.1, 0.5)
    check_agreement(agreement([]), 0.1, 0.5)
    with pytest.raises(HarmfulUpdate, match=r"differ by 0.15 nats a token over 2 tokens, expected at most max_logprob_gap = 0.1"):
        check_agreement(agreement([0.0, 0.3]), 0.1, 0.5)
    with pytest.raises(HarmfulUpdate, match="nan"):
        check_agreement(agreement([0.0, math.nan]), 0.1, 0.5)


def test_a_quantile_gap_above_its_bound_is_refused():
    differences = [0.0] * 98 + [2.0] * 2
    with pytest.raises(
        HarmfulUpdate, match=r"2 nats in one token of a hundred over 100 tokens, expected at most max_logprob_gap_p99 = 0.5"
    ):
        check_agreement(agreement(differences), 0.1, 0.5)
    check_agreement(agreement([0.0] * 99 + [2.0]), 0.1, 0.5)


def test_an_agreement_is_mean_quantile_and_largest_difference():
    differences = agreement([i / 1000 for i in range(200)])
    assert differences == pytest.approx((0.0995, 0.197, 0.199, 200))


def test_a_step_of_samples_without_an_advantage_is_refused():
    assert empty_refusal([sample(0.0), sample(1e-12)], 2, 1) == "advantage = 0 for each of its 2 samples"
    assert empty_refusal([sample(0.0), sample(-0.1)], 2, 2) is None
    assert str(empty_refusal([sample(-0.1)], 1, 2)).startswith(
        "1 of its places have a text that teaches, expected one for each of 2"
    )


def test_drift_is_bounded_per_token() -> None:
    step = totals([0.0], drift=3.0, tokens=10.0)
    assert Drift(0.31).exceeded(step) is None
    assert Drift(0.29).exceeded(step) == "a drift of 0.3 a token is above max_kl = 0.29"
    assert Drift(0.0).exceeded(step) is None


def test_drift_is_that_of_the_latest_thousand_tokens() -> None:
    calm, few_odd_tokens = totals([0.0], drift=1.0, tokens=100.0), totals([0.0], drift=60.0, tokens=5.0)
    small = Drift(0.5)
    assert [small.exceeded(step) for step in (*[calm] * 11, few_odd_tokens)] == [None] * 12, "a few tokens do not decide"
    assert small.exceeded(totals([0.0], drift=900.0, tokens=100.0)), "but a step that drifted far does"
    late = Drift(0.5)
    assert [late.exceeded(calm) for _ in range(50)] == [None] * 50
    drifted = [late.exceeded(totals([0.0], drift=60.0, tokens=100.0)) for _ in range(11)]
    assert drifted[:9] == [None] * 9 and drifted[10], "what came before the latest tokens counts no more"


def test_a_refused_step_without_a_number_does_not_switch_the_bound_of_the_drift_off() -> None:
    drift = Drift(0.5)
    assert drift.exceeded(totals([math.nan], drift=math.nan, tokens=10.0)) is None
    assert drift.exceeded(totals([0.0], drift=60.0, tokens=10.0)), "the next step has drifted"


def totals(log_ratio: list[float], **changes: float) -> Totals:
    plain = dict.fromkeys(Sums._fields, 1.0) | changes
    return Totals(Sums(**plain), torch.tensor(log_ratio))


@pytest.mark.parametrize(
    ("step_totals", "finite", "reason"),
    [
        (totals([0.0, math.log(9.9), -50.0]), True, None),
        (totals([], tokens=0.0, settled_tokens=0.0), True, "no sampled or settled token"),
        (totals([], tokens=0.0), True, None),
        (totals([0.0], settled=math.nan), True, "the loss is not finite"),
        (totals([0.0], loss=math.nan), True, "the loss is not finite"),
        (totals([0.0], context=math.inf), True, "the loss is not finite"),
        (totals([0.0]), False, "the gradient is not finite"),
    ],
)
def test_a_step_is_refused_with_the_reason(step_totals, finite, reason):
    refusal = step_refusal(step_totals, finite)
    assert refusal is None if reason is None else reason in str(refusal)


def test_a_token_that_became_much_likelier_is_found() -> None:
    assert odd_token(totals([0.0, math.log(9.9), -50.0]), 10.0) is None and odd_token(totals([], tokens=0.0), 10.0) is None
    assert (
        odd_token(totals([0.0, math.log(10.1)]), 10.0)
        == "a token is 10.1 times as likely as it was, expected at most max_ratio = 10.0"
    )
    assert "nan times as likely" in str(odd_token(totals([0.0, math.nan]), 10.0))
    assert odd_token(totals([5.0], loss=math.nan), 10.0) is None, "refused by its loss"


def test_settled_text_teaches_where_nothing_was_judged():
    unjudged = sample(0.0, outcome="unjudged").model_copy(update={"token_ids": (), "settled_token_ids": (3,)})
    assert empty_refusal([unjudged], 1, 1) is None
    without_weight = unjudged.model_copy(update={"settled_weight": 0.0})
    assert empty_refusal([without_weight], 1, 1)
