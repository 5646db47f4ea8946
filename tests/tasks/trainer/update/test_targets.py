"""What the samples teach under the weights of the loss."""

import math

import pytest

from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.safety import HarmfulUpdate
from tasks.trainer.update.targets import likely_enough, taught_by, trained_part, uses_sampled_tokens
from tests.tasks.made import sample

BOTH, SHOWN = sample("both", settled_token_ids=[7, 8]), sample("shown")
ALONE = sample("alone", outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[9])
SETTLED_ONLY = UpdateSettings(surrogate_weight=0.0)


def test_with_a_surrogate_every_sample_teaches() -> None:
    assert uses_sampled_tokens(UpdateSettings())
    assert taught_by([BOTH, SHOWN, ALONE], UpdateSettings()) == [BOTH, SHOWN, ALONE]


def test_without_a_surrogate_only_settled_text_teaches() -> None:
    assert not uses_sampled_tokens(SETTLED_ONLY)
    assert taught_by([BOTH, SHOWN, ALONE], SETTLED_ONLY) == [BOTH, ALONE]
    (part,) = trained_part([BOTH], SETTLED_ONLY)
    assert part.token_ids == part.logprobs == () and part.settled_token_ids == (7, 8)
    assert trained_part([BOTH, SHOWN], UpdateSettings()) == [BOTH, SHOWN]


def test_samples_of_one_outcome_are_refused_only_where_their_sampled_tokens_teach() -> None:
    kept = [sample(str(sign), reward=sign, advantage=sign, settled_token_ids=[7]) for sign in (0.5, -0.5)]
    assert taught_by(kept, SETTLED_ONLY) == kept
    with pytest.raises(HarmfulUpdate, match="outcome = 'accepted' for each of 2 samples"):
        taught_by(kept, UpdateSettings(surrogate_weight=1.0))
    silent = [row.model_copy(update={"outcome": "unjudged"}) for row in kept]
    assert taught_by(silent, UpdateSettings(surrogate_weight=1.0)) == silent


@pytest.mark.parametrize("weight", ["kl_weight", "entropy_weight"])
def test_the_kl_and_entropy_terms_read_the_sampled_tokens(weight: str) -> None:
    assert uses_sampled_tokens(SETTLED_ONLY.model_copy(update={weight: 0.1}))


@pytest.mark.parametrize(
    ("samples", "options"), [([SHOWN], SETTLED_ONLY), ([BOTH], UpdateSettings(surrogate_weight=0, settled_weight=0))]
)
def test_an_update_that_nothing_teaches_is_refused(samples, options) -> None:
    with pytest.raises(HarmfulUpdate, match=r"surrogate_weight = 0, .* nothing teaches"):
        taught_by(samples, options)


def test_settled_text_that_the_policy_hardly_ever_writes_is_left_out() -> None:
    options = SETTLED_ONLY.model_copy(update={"settled_exponent": 0.5, "settled_least_power": math.exp(-2.0)})
    powers = {0: -2.05, 2: -2.0}
    assert likely_enough([BOTH, SHOWN, ALONE], powers, options) == [ALONE]
    without = BOTH.model_copy(update={"settled_token_ids": ()})
    surrogate = options.model_copy(update={"surrogate_weight": 1.0})
    assert likely_enough([BOTH, SHOWN, ALONE], powers, surrogate) == [without, SHOWN, ALONE], "what was shown still teaches"
    with pytest.raises(HarmfulUpdate, match=r"settled_least_power = 0\.135335: none of 1 settled texts"):
        likely_enough([BOTH], {0: -9.0}, options)


@pytest.mark.parametrize("name", ["settled_least_power", "settled_beginnings"])
def test_what_depends_on_a_texts_probability_needs_an_exponent(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} = 0\.01, expected 0 with settled_exponent = 0"):
        UpdateSettings.model_validate({name: 0.01})
