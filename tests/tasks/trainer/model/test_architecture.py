"""The trainer refuses unsupported configurations and passes on Megatron's own arguments."""

import pytest

from tasks.trainer.model.megatron_arguments import RECOMPUTE, check_known, check_reserved

pytestmark = pytest.mark.stack


def test_a_scaled_rotary_embedding_is_refused(answers):
    assert [error.split(",")[0] for error in answers["stretched_rotary"]] == ["the model: config.json: rope_type = 'yarn'"] * 2


def test_an_installed_transformer_engine_is_refused(answers):
    assert answers["with_transformer_engine"].startswith("transformer_engine is installed: the trainer is not built for")


def test_a_pipeline_stage_without_a_trainable_layer_is_refused(answers):
    # Rank 0, which writes the answers, is the first stage.
    assert answers["pipeline"]["nothing_left"].startswith("frozen_layers = 1: nothing is left to train on pipeline stage 0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 1.0}, r"megatron_arguments.lr = 1.0: the trainer sets it itself \(train.learning_rate"),
        ({"weight_decay": 0.1, "bf16": True}, r"megatron_arguments.bf16 = True: .*train.precision"),
        ({"sequence_parallel": True}, r"sequence_parallel = True: .*train.pipeline_parallel and train.sequence_parallel"),
        ({"recompute_granularity": "full"}, r"recompute_granularity.*full.*expected .*selective.* the last layer"),
        ({"recompute_granularity": "selective"}, r"recompute_modules.*None.*expected .*mlp"),
    ],
)
def test_arguments_that_the_trainer_sets_itself_are_refused_with_the_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_reserved(arguments)


def test_other_megatron_arguments_are_not_reserved():
    check_reserved({"weight_decay": 0.1, "batch_p2p_comm": False, **RECOMPUTE})


def test_an_unknown_argument_is_refused_by_name():
    with pytest.raises(ValueError, match=r"weight_decoy = 0.1: no such argument, expected a field of .*TransformerConfig"):
        check_known({"weight_decay": 0.1, "weight_decoy": 0.1}, {"weight_decay"})


def test_megatron_gets_its_arguments_and_wrong_ones_are_refused(answers):
    values = answers["megatron_arguments"]
    assert values["reserved_but_unknown"] == []
    assert values["errors"]["unknown"].startswith("train.megatron_arguments.weight_decoy = 0.1: no such argument")
    assert values["errors"]["of the data-parallel configuration"].startswith("train.megatron_arguments.bucket_size = 1")
    assert values["errors"]["reserved"].startswith("train.megatron_arguments.lr = 1.0: the trainer sets it itself")
    assert "Megatron's TransformerConfig refuses them: " in values["errors"]["refused by Megatron"]
    assert values["transformer"] is True
    assert {tuple(pair) for pair in values["optimizer"]} <= {(0.5, 1e-4), (0.0, 1e-4)}, "biases and norms do not decay"
    assert (0.5, 1e-4) in {tuple(pair) for pair in values["optimizer"]}
    plain, recomputed, decayed = values["losses"]
    assert recomputed == plain and decayed != plain
