"""What the samples teach under the weights of the loss."""

import pytest

from infra.settings.training import UpdateSettings
from tasks.trainer.update.safety import HarmfulUpdate
from tasks.trainer.update.targets import taught_by, uses_sampled_tokens, without_sampled_tokens
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
    assert without_sampled_tokens(BOTH).token_ids == without_sampled_tokens(BOTH).logprobs == ()
    assert without_sampled_tokens(BOTH).settled_token_ids == (7, 8)


@pytest.mark.parametrize("weight", ["kl_weight", "entropy_weight"])
def test_the_kl_and_entropy_terms_read_the_sampled_tokens(weight: str) -> None:
    assert uses_sampled_tokens(SETTLED_ONLY.model_copy(update={weight: 0.1}))


@pytest.mark.parametrize(
    ("samples", "options"), [([SHOWN], SETTLED_ONLY), ([BOTH], UpdateSettings(surrogate_weight=0, settled_weight=0))]
)
def test_an_update_that_nothing_teaches_is_refused(samples, options) -> None:
    with pytest.raises(HarmfulUpdate, match=r"surrogate_weight = 0, .* nothing teaches"):
        taught_by(samples, options)
