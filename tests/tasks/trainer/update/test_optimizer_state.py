"""What a trainer holds and leaves behind: gone on from, in other layouts too, killed at any moment, frozen."""

import pytest

from tests.tasks.trainer.processes import LAYOUTS

MOVES = ["one to data", "data to tensor", "data to pipeline", "tensor to data", "tensor to one", "pipeline to one"]


@LAYOUTS
def test_one_process_alone_holds_what_is_written(answers, layout):
    assert answers[layout]["collected"] == ([26] if layout == "one" else [26, 0])


@LAYOUTS
def test_each_rank_writes_its_share_of_the_optimizers_state(answers, layout):
    found = answers[layout]["shared"]
    assert found["astray"] == 0, "each tensor once"
    assert sum(found["elements"]) == found["whole"]
    assert min(found["elements"]) > 0
    assert layout == "pipeline" or max(found["elements"]) - min(found["elements"]) <= found["largest"]


@LAYOUTS
def test_an_update_goes_on_bit_for_bit_from_weights_and_moments_on_disk(answers, layout):
    for found in answers[layout]["resumed"]:
        assert found["resumed"] == 0
        assert found["without"] > 1e-4, "moments matter, or this proves little"
        assert found["drew"] == 0, "an update that draws random numbers would need their state kept"


@pytest.mark.parametrize("move", MOVES)
def test_an_update_goes_on_in_another_layout_of_processes(answers, move):
    assert set(answers["moved"]) == set(MOVES)
    single, half = answers["moved"][move]
    assert single["changed"] == half["changed"] == 0, "bits of the moments"
    assert "whose exp_avg_sq is in no file" in single["lost"]
    without, _ = answers[move.split()[0]]["resumed"]
    assert single["apart"] < 1e-2 * without["without"]


def test_an_update_killed_anywhere_and_run_again_ends_in_the_same_weights(answers):
    found = answers["killed"]
    assert found["deaths"] > 8
    assert found["half_written"] == 2, "moments and weights"
    assert found["tensors"] == 3 * 26
    assert found["differing"] == found["left"] == 0


@LAYOUTS
def test_frozen_layers_stay_and_the_others_do_not(answers, layout):
    for found in answers[layout]["frozen"]:
        assert found == {"moved": 0, "stayed": 0, "frozen": 13, "saved_in_float32": 1}
