"""Updates learn; refused steps and updates state the reason and do not change the weights."""

import pyarrow.parquet as pq
import pytest

from tests.tasks.trainer.processes import LAYOUTS

pytestmark = pytest.mark.stack


@LAYOUTS
def test_a_refusal_states_the_reason_and_does_not_change_the_weights(answers, layout):
    values = answers[layout]["refusals"]
    assert values["loss"].startswith("no step was taken; step 1 refused: the loss is not finite (nan")
    assert values["ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert "step 1 refused: advantage = 0 for each of its 4 samples" in values["zero"]
    assert values["finite"] and values["not_finite"] == [False] * 3
    assert values["gradient"].startswith("optimizer: the gradient is not finite, the step was not taken")
    assert values["moved"] == 0
    assert values["taken"] == 2
    assert len(values["notes"]) == 1 and "the loss is not finite" in values["notes"][0]
    assert values["trained"] == 8 and not values["odd_trained"]


@LAYOUTS
def test_an_update_ends_early_at_max_kl(answers, layout):
    values = answers[layout]["refusals"]
    assert values["before_the_kl"] == 1
    assert len(values["stopped"]) == 1 and values["stopped"][0].startswith("step 2 and on: a drift of ")


@LAYOUTS
def test_the_written_text_goes_on_where_the_draws_have_drifted(answers, layout):
    values = answers[layout]["refusals"]
    (note,) = values["drifted"]
    assert note.startswith("step 2 and on: a drift of ") and note.endswith("the written text alone is trained on")
    assert values["all"] > 4 and 0 < values["acted"] == values["of_steps"], "the others taught by their written text alone"
    assert len(values["after_the_drift"]) == 5 and all(kl is None and tokens for kl, tokens in values["after_the_drift"])


@LAYOUTS
def test_a_step_with_a_token_that_became_much_likelier_trains_on_its_written_text_alone(answers, layout):
    values = answers[layout]["refusals"]
    assert len(values["odd_tokens"]) == len(values["without_odd_tokens"]) == 6
    assert all(
        "times as likely" in note and note.endswith(", its written text alone is trained on") for note in values["odd_tokens"]
    )
    assert all(settled and not sampled for sampled, settled in values["without_odd_tokens"])
    assert values["norms"][0] == pytest.approx(values["norms"][1], rel=1e-6), "as an update of the written text alone"
    assert values["scales"][0] == pytest.approx(values["scales"][1], rel=1e-6)


@LAYOUTS
def test_bounds_apply_to_older_samples_with_a_proximal_policy_of_each_step(answers, layout):
    values = answers[layout]["refusals"]
    assert values["older_ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert values["older_kl"].startswith("no step was taken; step 1 and on: a drift of ")


def test_samples_after_an_early_end_are_counted_as_skipped(answers, work):
    values = answers["ended"]
    rows = pq.read_table(work / "samples.parquet").to_pylist()
    first = [rows[i] for i in values["order"]]
    assert (values["samples"], values["skipped"]) == (4, 8)
    assert values["tokens"] == sum(len(row["token_ids"]) for row in first)
    assert values["mean_reward"] == pytest.approx(sum(row["reward"] for row in first) / 4)


@pytest.mark.parametrize("bandit", ["bandit", "grouped_bandit"])
def test_a_bandit_is_learnt_within_a_minute(answers, bandit):
    values = answers[bandit]
    assert values["first"] < 0.3
    assert values["last"] > 0.95
    assert values["seconds"] < 60, "of one core"


def test_a_user_with_likely_text_stays_at_the_cap_through_an_update(answers):
    values, share = answers["caps"], 0.3
    assert values["free"]["likely"] > 2 * share, "without a cap the user has most of the update with a quarter of the tokens"
    assert max(values["capped"].values()) < share * 1.001
    assert min(values["capped"].values()) > 0.1, "nobody is silenced"
    assert values["silenced"]["difference"] == 0, "a ceiling of nothing is as no weight"


def test_a_last_pass_of_a_part_is_one_in_which_the_other_texts_have_no_weight(answers):
    values = answers["part"]
    assert values["moved"] > 1e-3, "it differs from two whole passes"
    assert values["difference"] < values["moved"] / 100


def test_a_user_whose_repeated_text_becomes_likely_stays_at_the_cap(answers):
    values, share = answers["caps"], 0.4
    assert values["repeated, free"]["repeated"] > share + 0.1
    assert max(values["repeated, capped"].values()) < share * 1.001


def test_rejections_alone_make_rejected_tokens_less_likely(answers):
    assert len(answers["rejections"]) == 12
    assert max(answers["rejections"]) < -0.01
