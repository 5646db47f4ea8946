"""The planned memory is that which a step takes, layouts that cannot fit are refused, and proposals fit."""

import json
import math
from math import prod
from pathlib import Path

import pytest

from infra import cli
from infra.model import adapters
from infra.model.architectures import Architecture, parse
from infra.settings import PRODUCTION, ROOT, WORKSTATION, load
from infra.settings.training import Train
from tasks.trainer.memory import fit
from tasks.trainer.memory.estimate import Layout, MicroBatchSize, Trained, estimate, propose, usable

COMMON = {"model_type": "qwen2", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
QWEN = {
    "1.5B": {
        **{"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
        **{"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    },
    "7B": {
        **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
        **{"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    },
    "32B": {
        **{"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40},
        **{"num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False},
    },
}
"""config.json of Qwen2.5-Coder, as published."""
CARD = int(80e9)


def qwen(name: str) -> Architecture:
    return parse(COMMON | QWEN[name], name)


@pytest.mark.stack
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["wide MLP", "wide states", "large vocabulary", "untied"])
@pytest.mark.parametrize("trained", ["", ", adapter"])
def test_the_plan_is_within_a_tenth_of_the_measured_peak(answers, shape, precision, trained):
    ratios = answers["peaks"][f"{shape}, {precision}{trained}"]
    assert ratios["stays"] == pytest.approx(1, abs=0.01)
    assert ratios["peak"] == pytest.approx(1, abs=0.1)


@pytest.mark.stack
@pytest.mark.parametrize("recompute", ["selective", "full", "selective, adapter", "full, adapter"])
def test_the_plan_counts_what_is_computed_again(answers, recompute):
    assert answers["peaks"][f"deep, {recompute}"]["peak"] == pytest.approx(1, abs=0.1)


@pytest.mark.stack
def test_the_plan_counts_what_each_rank_holds_of_the_distributed_optimizer(answers):
    assert answers["distributed"]["stays"] == pytest.approx({"False, 0": 1, "False, 8": 1, "True, 0": 1, "True, 8": 1}, abs=0.01)


@pytest.mark.stack
def test_an_update_that_cannot_fit_is_refused_before_it_loads(answers):
    enough, too_little = answers["memory"]
    assert enough == ""
    assert "TP 1, PP 1, DP 1 with micro-batches of" in too_little and "a process has 0.0 GB" in too_little


@pytest.mark.parametrize(
    ("rows", "bounds", "size"),
    [
        ([(100, 10)] * 50, (1000, 0), (1000, 100)),
        ([(100, 10)] * 50, (1000, 40), (1000, 40)),
        ([(100, 10)] * 3, (1000, 0), (300, 30)),
        ([(100, 10), (1500, 15)], (1000, 0), (1500, 150)),
        # The drawn texts of a place share their prompt's row, which is never divided.
        ([(100, 10), (600, 320)], (2048, 256), (700, 320)),
    ],
)
def test_the_largest_micro_batch_is_within_the_bounds_or_one_row(rows, bounds, size):
    assert MicroBatchSize.largest(rows, *bounds) == MicroBatchSize(*size)


@pytest.mark.parametrize(("name", "billions"), [("1.5B", 1.54), ("7B", 7.62), ("32B", 32.76)])
def test_the_parameters_are_those_of_the_published_models(name, billions):
    assert qwen(name).parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_the_micro_batch_of_the_desk_check_does_not_fit():
    size = MicroBatchSize(32768, 4096)
    needed = estimate(qwen("1.5B"), Layout(data=8), size)
    assert needed.weights + needed.masters + needed.gradients + needed.adam == pytest.approx(27.8e9, rel=0.01)
    assert needed.activations == pytest.approx(86.5e9, rel=0.05)
    settings = Train(micro_batch_tokens=size.tokens)
    advice = r"these settings fit: .*_tokens = 20992.*distributed_optimizer = true"
    with pytest.raises(fit.DoesNotFit, match=r"needs 124.* GB .*; " + advice):
        fit.check_fits(qwen("1.5B"), settings, Layout(data=8), size, CARD, bf16=True)


@pytest.mark.parametrize(("name", "cards"), [("1.5B", 1), ("7B", 4), ("7B", 8), ("32B", 16), ("32B", 32)])
def test_every_proposal_fits_and_uses_all_cards(name, cards):
    proposals = propose(qwen(name), CARD, cards)
    assert proposals and proposals[0].size.tokens >= 8192
    for proposal in proposals:
        assert proposal.layout.processes == cards
        assert proposal.memory.total <= usable(CARD)
        larger = MicroBatchSize(proposal.size.tokens + 2048, proposal.size.positions + 256)
        wide = estimate(qwen(name), proposal.layout, larger, means=proposal.means)
        assert wide.total > usable(CARD) or proposal.size.tokens > 1 << 16


def test_nothing_is_proposed_for_a_model_that_no_card_holds():
    assert propose(qwen("32B"), CARD, 2) == []


@pytest.mark.parametrize(("name", "gigabytes", "stays"), [("1.5B", 16, 3.4), ("7B", 24, 16.0), ("32B", 80, 67.9)])
def test_an_adapter_fits_one_card_that_full_weights_do_not(name, gigabytes, stays):
    """The weights in bfloat16, and 16 bytes more for each parameter of the adapter."""
    card, adapter = int(gigabytes * 1e9), Trained(adapter_rank=16)
    assert propose(qwen(name), card, 1) == []
    memory = propose(qwen(name), card, 1, trained=adapter)[0].memory
    kept = memory.weights + memory.masters + memory.gradients + memory.adam
    added = sum(prod(shape) for shape in adapters.tensors(qwen(name), 16).values())
    assert kept == 2 * qwen(name).parameters + 18 * added == pytest.approx(stays * 1e9, abs=0.05e9)


@pytest.mark.parametrize(("rank", "advice"), [(0, r"use more, or train an adapter \(train.adapter_rank\)"), (16, "use more$")])
def test_where_nothing_fits_an_adapter_is_proposed(rank, advice):
    settings = Train(adapter_rank=rank)
    with pytest.raises(fit.DoesNotFit, match=advice):
        fit.check_fits(qwen("7B"), settings, Layout(), MicroBatchSize(8192, 1024), int(8e9), bf16=True)


def test_parallel_parts_of_an_adapter_need_less_memory_each():
    size, adapter = MicroBatchSize(8192, 1024), Trained(adapter_rank=16)
    layouts = Layout(), Layout(tensor=4), Layout(pipeline=4)
    alone, split, staged = (estimate(qwen("7B"), layout, size, trained=adapter) for layout in layouts)
    assert alone.gradients / 4 < split.gradients < alone.gradients, "tensor-parallel processes hold one side whole"
    assert staged.gradients == alone.gradients / 4
    frozen = estimate(qwen("7B"), Layout(), size, trained=Trained(frozen_layers=14, adapter_rank=16))
    assert frozen.gradients == alone.gradients / 2 and frozen.activations < alone.activations


def test_the_production_settings_fit_the_card_that_they_name():
    train = load(PRODUCTION, {}).train
    layout = Layout(train.tensor_parallel, train.pipeline_parallel, train.processes)
    size = MicroBatchSize(train.micro_batch_tokens, train.micro_batch_positions)
    fit.check_fits(qwen("1.5B"), train, layout, size, usable(CARD), bf16=True)


def test_one_card_holds_both_engines_and_the_trainer_of_a_workstation():
    settings = load(WORKSTATION, {})
    train, engine = settings.train, settings.serving.engine_arguments
    size = MicroBatchSize(train.micro_batch_tokens, train.micro_batch_positions)
    fit.check_fits(qwen("1.5B"), train, Layout(), size, usable(int(10e9)), bf16=True)
    weights = 2 * sum(math.prod(shape) for shape in qwen("1.5B").tensors().values())
    beside_weights = 2.8e9  # activations, graphs, adapters and CUDA's own, as measured on an H100 with four times the sequences
    of_engine = weights + engine["kv_cache_memory_bytes"] + beside_weights
    assert int(10e9) + 2 * of_engine < 24e9
    # vLLM refuses to start where this share of the card is not free: the engine that starts last finds the other and the trainer.
    assert engine["gpu_memory_utilization"] * 24e9 < 24e9 - int(10e9) - of_engine
    assert settings.serving.engines[0] == settings.serving.engines[1] and engine["max_lora_rank"] >= train.adapter_rank
    room = settings.model.max_prefix_tokens + settings.model.max_suffix_tokens + settings.serving.sampling.max_tokens
    assert room < engine["max_model_len"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tensor=4), "train.tensor_parallel = 4, expected a divisor of the model's 2 key-value heads"),
        (Layout(pipeline=3), "train.pipeline_parallel = 3, expected a divisor of the model's 28 layers"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused(layout, message):
    with pytest.raises(ValueError, match=message):
        estimate(qwen("1.5B"), layout, MicroBatchSize(1024, 128))


def test_more_parallel_parts_need_less_memory_each():
    size = MicroBatchSize(8192, 1024)
    alone, split, staged = (estimate(qwen("7B"), layout, size) for layout in (Layout(), Layout(tensor=4), Layout(pipeline=4)))
    assert split.total < alone.total / 2 and staged.weights < alone.weights / 2


def test_the_command_prints_a_proposal_and_names_bad_input(tmp_path: Path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(COMMON | QWEN["1.5B"]))
    assert cli.main(["memory", "--model", str(tmp_path), "--gpu", "80GB"]) == 0
    assert "proposed: train.tensor_parallel = 1" in capsys.readouterr().out
    asked = ["--model", str(tmp_path), "--gpu", "80GB", "--tensor", "1", "--tokens", "32768"]
    assert cli.main(["memory", *asked]) == 1
    assert "asked for: does not fit" in capsys.readouterr().out
    capsys.readouterr()
    assert cli.main(["memory", "--model", str(tmp_path), "--gpu", "16GB"]) == 1
    assert cli.main(["memory", "--model", str(tmp_path), "--gpu", "16GB", "--adapter-rank", "16"]) == 0
    assert "an adapter of rank 16" in " ".join(capsys.readouterr().out.split())
    for size in ("eighty", "0GB"):
        assert cli.main(["memory", "--model", str(tmp_path), "--gpu", size]) == 2
        assert f"--gpu '{size}': expected a size such as 80GB" in capsys.readouterr().err
    assert cli.main(["memory", "--model", str(ROOT / "infra"), "--gpu", "80GB"]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpus", "0"), "'--gpus'"),
        (("--gpus", "1000000000"), "'--gpus'"),
        (("--tensor", "1", "--tokens", f"{10**30}"), "'--tokens'"),
        (("--tensor", "0"), "'--tensor'"),
        (("--tensor", "-1"), "'--tensor'"),
        (("--tensor", "1", "--pipeline", "0"), "'--pipeline'"),
        (("--tensor", "1", "--tokens", "0"), "'--tokens'"),
        (("--tensor", "1", "--positions", "0"), "'--positions'"),
        (("--adapter-rank", "257"), "'--adapter-rank'"),
        (("--tensor", "1", "--sequence"), "--sequence: expected --tensor 2 or more"),
        (("--recompute", "full"), "--recompute describes one layout, expected --tensor beside it"),
        (("--tokens", "1024"), "--tokens describes one layout, expected --tensor beside it"),
    ],
    ids=str,
)
def test_the_command_refuses_options_that_no_layout_has(options: tuple[str, ...], message: str, tmp_path: Path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(COMMON | QWEN["1.5B"]))
    assert cli.main(["memory", "--model", str(tmp_path), "--gpu", "80GB", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err and "fits" not in said.out
