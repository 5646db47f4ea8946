"""What the samples teach under the weights of the loss."""

import pytest

from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.safety import HarmfulUpdate, empty_refusal
from tasks.trainer.update.targets import taught_by, trained_part, without
from tests.tasks.made import sample

BOTH, SHOWN = sample("both", settled_token_ids=[7, 8], advantage=0.5), sample("shown", advantage=-0.5)
ALONE = sample("alone", outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[9])
DRAWN = sample("both/drawn-1", outcome="judged", advantage=0.1)
SETTLED_ONLY = UpdateSettings(surrogate_weight=0.0)


def test_every_action_teaches() -> None:
    every = [BOTH, SHOWN, ALONE, DRAWN]
    assert taught_by(every, UpdateSettings()) == every == trained_part(every, UpdateSettings())


@pytest.mark.parametrize("options", [SETTLED_ONLY, UpdateSettings(actions=("written",))])
def test_without_a_surrogate_only_settled_text_teaches(options: UpdateSettings) -> None:
    assert taught_by([BOTH, SHOWN, ALONE, DRAWN], options) == [BOTH, ALONE]
    (part,) = trained_part([BOTH], options)
    assert part.token_ids == part.logprobs == () and part.settled_token_ids == (7, 8)


def test_each_kind_of_action_can_teach_alone() -> None:
    served, drawn = UpdateSettings(actions=("served",)), UpdateSettings(actions=("drawn",))
    assert taught_by([BOTH, SHOWN, ALONE, DRAWN], served) == [BOTH, SHOWN]
    assert taught_by([BOTH, SHOWN, ALONE, DRAWN], drawn) == [DRAWN]
    (part,) = trained_part([BOTH], served)
    assert part.settled_token_ids == () and part.token_ids == BOTH.token_ids


def test_an_action_without_an_advantage_takes_no_forward_pass() -> None:
    unmoved = BOTH.model_copy(update={"advantage": 0.0})
    (part,) = trained_part([unmoved], UpdateSettings())
    assert part.token_ids == () and part.settled_token_ids == (7, 8)
    assert trained_part([unmoved], UpdateSettings(kl_weight=0.1)) == [unmoved]


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("outcome", ["unjudged", "accepted", "rejected"])
def test_a_team_that_reports_nothing_trains_on_settled_text(outcome: str, blank: bool) -> None:
    """Its rows have one outcome and rewards that differ: no reason to refuse what was written. A blank text changes nothing."""
    rows = [sample(str(sign), outcome=outcome, reward=sign, advantage=sign, settled_token_ids=[7]) for sign in (0.5, -0.5)]
    silent = sample("blank", outcome="nothing", shown_characters=0, accepted_characters=0)
    assert taught_by([*rows, *[silent] * blank], UpdateSettings()) == rows


@pytest.mark.parametrize("weight", ["kl_weight", "entropy_weight"])
def test_the_kl_and_entropy_terms_read_the_sampled_tokens(weight: str) -> None:
    assert taught_by([sample("c")], SETTLED_ONLY.model_copy(update={weight: 0.1})) == [sample("c")]


@pytest.mark.parametrize(
    ("samples", "options", "advantages"),
    [
        ([SHOWN], SETTLED_ONLY, "above or below 0 for 1 of 1 samples"),
        ([BOTH], UpdateSettings(surrogate_weight=0, settled_weight=0), "above or below 0 for 1 of 1 samples"),
        ([ALONE, DRAWN], UpdateSettings(actions=("served",)), "above or below 0 for 1 of 2 samples"),
        ([sample("c"), sample("d", reward=0.5)], UpdateSettings(), "= 0 for each of 2 samples"),
    ],
)
def test_an_update_that_nothing_teaches_is_refused(samples, options, advantages: str) -> None:
    with pytest.raises(HarmfulUpdate, match=rf"nothing teaches: actions = \[.*, advantage {advantages}"):
        taught_by(samples, options)


def test_a_step_of_samples_that_lost_their_sampled_tokens_has_nothing_to_learn() -> None:
    weightless = BOTH.model_copy(update={"settled_weight": 0.0})
    assert empty_refusal([weightless], 1, 1) is None
    assert empty_refusal([without(weightless, sampled=True, settled=False)], 1, 1), "Adam would repeat its last direction"


def test_beginnings_need_an_exponent() -> None:
    with pytest.raises(ValueError, match=r"settled_beginnings = 0\.01, expected 0 with settled_exponent = 0"):
        UpdateSettings(settled_beginnings=0.01)
