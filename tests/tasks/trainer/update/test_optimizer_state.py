"""Updates resume from weights and optimizer state, also in other layouts and after a kill; frozen layers do not change."""

import pytest

pytestmark = pytest.mark.stack

MOVES = [
    *("one to data", "data to tensor", "distributed to pipeline", "tensor to distributed", "one to distributed"),
    *("tensor to one", "pipeline to one", "distributed to one"),
]
LAYOUTS = pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline", "distributed"])
"""The distributed optimizer's ranks each hold a part of the state."""


@LAYOUTS
def test_only_rank_0_gathers_the_weights(answers, layout):
    assert answers[layout]["gathered"] == ([26] if layout == "one" else [26, 0])


@LAYOUTS
def test_each_rank_writes_its_share_of_the_optimizers_state(answers, layout):
    values = answers[layout]["shares"]
    assert values["astray"] == 0, "each tensor is in one share"
    assert sum(values["elements"]) == values["whole"]
    assert min(values["elements"]) > 0
    assert layout == "pipeline" or max(values["elements"]) - min(values["elements"]) <= values["largest"]


@LAYOUTS
def test_an_update_resumes_exactly_from_weights_and_optimizer_state_on_disk(answers, layout):
    for values in answers[layout]["resumed"]:
        assert values["resumed"] == 0
        assert values["without"] > 1e-4, "without the state the result must differ"
        assert values["drew"] == 0, "an update draws no random numbers, so their state is not stored"


@LAYOUTS
def test_the_weights_stop_at_a_share_of_the_updates_way(answers, layout):
    for values in answers[layout]["resumed"]:
        assert values["between"] < 1e-6
    assert answers["halfway"] < 1e-6, "the job's share"


@pytest.mark.parametrize("move", MOVES)
def test_an_update_resumes_in_another_layout_of_processes(answers, move):
    assert set(answers["moved"]) == set(MOVES)
    single, half = answers["moved"][move]
    assert single["changed"] == half["changed"] == 0, "bits of the optimizer state"
    assert "whose exp_avg_sq is in no file" in single["lost"]
    without, _ = answers[move.split()[0]]["resumed"]
    assert single["apart"] < 1e-2 * without["without"]


def test_an_update_killed_at_any_moment_and_run_again_writes_the_same_weights(answers):
    values = answers["killed"]
    assert values["deaths"] > 8
    assert values["half_written"] == 2, "optimizer state and weights"
    assert values["tensors"] == 3 * 26
    assert values["differing"] == values["left"] == 0


@LAYOUTS
def test_only_frozen_layers_do_not_change(answers, layout):
    for values in answers[layout]["frozen"]:
        assert values == {"moved": 0, "stayed": 0, "frozen": 13, "saved_in_float32": 1}
