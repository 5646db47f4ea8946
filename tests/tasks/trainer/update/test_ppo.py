"""What the trainer refuses says why, and leaves the weights and the counts as they should be."""

import pyarrow.parquet as pq
import pytest

from tests.tasks.trainer.processes import LAYOUTS


@LAYOUTS
def test_what_is_refused_says_why_and_leaves_the_weights(answers, layout):
    found = answers[layout]["refusals"]
    assert found["loss"].startswith("no step was taken; step 1 refused: the loss is not finite (nan")
    assert found["ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert "step 1 refused: advantage = 0 for each of its 4 samples" in found["zero"]
    assert found["finite"] and found["not_finite"] == [False] * 3
    assert found["gradient"].startswith("optimizer: the gradient is not finite, the step was not taken")
    assert found["moved"] == 0
    assert found["taken"] == 2
    assert len(found["notes"]) == 1 and "the loss is not finite" in found["notes"][0]
    assert found["trained"] == 8 and not found["odd_trained"]


@LAYOUTS
def test_an_update_ends_early_at_its_bound_of_kl(answers, layout):
    found = answers[layout]["refusals"]
    assert found["before_the_kl"] == 1
    assert len(found["stopped"]) == 1 and found["stopped"][0].startswith("step 2 and on: KL ")


@LAYOUTS
def test_bounds_hold_older_samples_whose_proximal_policy_is_each_step_s_own(answers, layout):
    found = answers[layout]["refusals"]
    assert found["older_ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert found["older_kl"].startswith("no step was taken; step 1 and on: KL ")


def test_samples_that_an_early_end_leaves_out_are_not_counted_as_trained(answers, work):
    found = answers["ended"]
    rows = pq.read_table(work / "samples.parquet").to_pylist()
    first = [rows[i] for i in found["order"]]
    assert (found["samples"], found["skipped"]) == (4, 8)
    assert found["tokens"] == sum(len(row["token_ids"]) for row in first)
    assert found["mean_reward"] == pytest.approx(sum(row["reward"] for row in first) / 4)


def test_a_stage_with_nothing_left_to_train_is_refused(answers):
    # Rank 0, which writes the answers, is the first stage.
    assert answers["pipeline"]["nothing_left"].startswith("frozen_layers = 1: nothing is left to train on pipeline stage 0")


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_pretraining_of_a_model_that_is_split_is_refused(answers, layout):
    muon, loss = answers[layout]["pretraining"]
    assert "'muon'" in muon
    assert loss.startswith(f"{layout} parallelism = 2: pretraining has no loss for it, expected 1")


def test_a_rotary_embedding_of_another_kind_is_refused(answers):
    assert [told.split(",")[0] for told in answers["stretched"]] == ["config.json: rope_type = 'yarn'"] * 2


def test_transformer_engine_is_not_guessed_at(answers):
    assert answers["with_transformer_engine"].startswith("transformer_engine is installed: the trainer is not built for")
