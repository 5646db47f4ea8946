"""Models on cards: bytes from config.json, rates that are measured or marked as assumed, and refusals with the next command."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import cli
from infra.settings import ROOT, Settings
from tasks.experiments.planning.capacity import Load, capacity, per_day
from tasks.experiments.planning.cards import CARDS, Card, NotACard, card_of
from tasks.experiments.planning.costs import GPU_RATE
from tasks.experiments.planning.engine import (
    MEASURED,
    MEASURED_MODEL,
    DoesNotFit,
    Engine,
    Model,
    NotAnEngine,
    adapters_rate,
    cards_of,
    check,
    check_fits,
    fewest,
    read_model,
)
from tests.tasks.trainer.test_memory_fit import COMMON, QWEN, qwen

H100, H200 = CARDS
COMMAND = ("plan", "capacity", "--requests", "10000/day")


def folder(path: Path, name: str = "1.5B", **changed: Any) -> Path:
    """Write a config.json, and return its folder."""
    (path / "config.json").write_text(json.dumps(COMMON | QWEN[name] | {"torch_dtype": "bfloat16"} | changed))
    return path


def engine_of(name: str, card: Card = H100, tensor: int = 1) -> Engine:
    return Engine(Model(name, qwen(name)), card, tensor)


def rows(engine: Engine, load: float = 1e4) -> dict[str, Any]:
    return {row.part: row for row in capacity(Load(load), Settings(), engine).rows}


def test_bytes_are_those_of_the_published_model_and_of_its_measurement(tmp_path: Path) -> None:
    model = read_model(folder(tmp_path))
    assert model.weights == 2 * 1_543_714_304
    assert model.cache == 2 * 28 * 2 * 128 * 2, "keys and values of 28 layers with two heads of 128 numbers, 28 KB a token"
    assert model.adapter == pytest.approx(73.9e6, rel=0.001), "measured on an H200"
    assert model.architecture == MEASURED_MODEL.architecture
    untied = read_model(folder(tmp_path, tie_word_embeddings=False))
    assert untied.weights - model.weights == 2 * 151936 * 1536


@pytest.mark.parametrize(
    ("dtype", "width"), [({"torch_dtype": "float32"}, 4), ({"dtype": "float16"}, 2), ({"torch_dtype": None}, 2)]
)
def test_the_type_of_weights_is_that_of_config_json(dtype: dict[str, Any], width: int, tmp_path: Path) -> None:
    model = read_model(folder(tmp_path, **dtype))
    assert model.weights == width * model.architecture.parameters
    named = "assumed: bfloat16" not in rows(Engine(model))["engine: memory"].basis
    assert named is (dtype != {"torch_dtype": None})


def test_the_measured_engine_alone_has_the_measured_rate(tmp_path: Path) -> None:
    assert Engine(read_model(folder(tmp_path))).rate(512) == GPU_RATE == MEASURED.rate(512)
    for engine, prompt in ((MEASURED, 1536), (replace(MEASURED, card=H100), 512), (engine_of("7B", H200), 512)):
        rate = engine.rate(prompt)
        assert rate.basis.startswith("assumed: ") and GPU_RATE.basis in rate.basis and rate.value < GPU_RATE.value
    assert adapters_rate(MEASURED, 512).value == GPU_RATE.value / 2
    assert Engine(given_rate=7.0).rate(9_000).basis == "given by --gpu-rate"


def test_a_prefill_takes_operations_and_a_decode_reads_weights_and_cache() -> None:
    """Counted by hand for 7B on an H100: half of 1,024 tokens prefilled, 24 tokens decoded by 32 streams."""
    products, attention = 7_615_616_512 - 2 * 152064 * 3584, 4 * 28 * 3584 * 768
    seconds = 512 * (2 * products + attention) / 989e12 + 24 * (2 * 7_615_616_512 / 32 + 57_344 * 1036) / 3.35e12
    small = 256 * (2 * (1_543_714_304 - 151936 * 1536) + 4 * 28 * 1536 * 384) / 989e12
    small += 24 * (2 * 1_543_714_304 / 32 + 28_672 * 524) / 4.8e12
    assert engine_of("7B").rate(1024).value == pytest.approx(143 * small / seconds)


@given(st.integers(1, 30_000), st.integers(1, 2_000))
def test_a_longer_prompt_is_never_faster_and_a_larger_model_neither(prompt: int, more: int) -> None:
    assert MEASURED.rate(prompt + more).value <= MEASURED.rate(prompt).value <= GPU_RATE.value
    assert engine_of("32B").rate(prompt).value < engine_of("7B").rate(prompt).value
    assert engine_of("7B", H100).rate(prompt).value < engine_of("7B", H200).rate(prompt).value


def test_a_model_much_smaller_than_the_measured_one_is_not_faster() -> None:
    small = Engine(read_model(ROOT / "infra/base_model"), H100).rate(512)
    assert small.value == GPU_RATE.value and "no faster than measured" in small.basis


@pytest.mark.parametrize(("name", "tensor"), [("7B", 2), ("32B", 4), ("32B", 8)])
def test_tensor_parallelism_divides_memory_and_counts_its_cards(name: str, tensor: int) -> None:
    one, several = engine_of(name), engine_of(name, tensor=tensor)
    assert several.needs(512)[0] == one.needs(512)[0] / tensor and several.needs(512)[1] == one.needs(512)[1] / tensor
    assert several.rate(512).value == pytest.approx(tensor * one.rate(512).value)
    found = rows(several, per_day("20/s"))
    engines = int(found["engines"].needs.split()[0])
    assert (
        found["GPUs"].needs.startswith(f"{engines * tensor} H100 with full weights")
        and f"; {tensor} an engine" in found["GPUs"].needs
    )


@pytest.mark.parametrize(
    ("name", "gigabytes", "rank", "cards", "tokens"),
    [
        ("1.5B", 16, 0, 4, 10_752),
        ("1.5B", 80, 0, 1, 15_360),
        ("7B", 24, 16, 1, 9_728),
        ("7B", 80, 0, 4, 9_216),
        ("32B", 24, 0, None, 0),
        ("32B", 48, 16, 2, 15_872),
        ("32B", 80, 0, 16, 9_728),
    ],
)
def test_the_trainer_is_that_of_the_page_of_its_memory(
    name: str, gigabytes: int, rank: int, cards: int | None, tokens: int
) -> None:
    """infra/docs/how/training-hardware.md has these cells."""
    found = fewest(qwen(name), int(gigabytes * 1e9), rank)
    page = (ROOT / "infra/docs/how/training-hardware.md").read_text()
    trained = "adapter" if rank else "full weights"
    row = next(line for line in page.splitlines() if line.startswith(f"| {name} | {trained} | "))
    cell = row.split(" | ")[2 + (16, 24, 48, 80).index(gigabytes)]
    assert (found and (found.layout.processes, found.size.tokens)) == (cards and (cards, tokens))
    assert cell.startswith(f"{cards}: " if cards else "none") and (not cards or f"{tokens:,} (" in cell)


def test_the_plan_names_the_trainer_of_the_card() -> None:
    needs = rows(engine_of("7B"))["trainer"].needs
    assert needs.startswith("full weights: 4 cards (TP 2, PP 1, DP 2), 46 GB each") and "; an adapter: 1 card (" in needs
    assert (
        "full weights: not on 32 cards" in rows(Engine(Model("32B", qwen("32B")), card_of("24GB", 1.0), 8, 1.0))["trainer"].needs
    )


def test_a_model_that_does_not_fit_is_refused_with_what_would() -> None:
    check_fits(engine_of("32B", H200), 1536)
    check_fits(engine_of("32B", tensor=2), 1536)
    with pytest.raises(DoesNotFit) as refused:
        check_fits(engine_of("32B"), 1536)
    said = str(refused.value)
    assert "32B does not fit H100: an engine needs 83.6 GB of each card (65.5 GB of weights, 13.1 GB of KV cache" in said
    assert "may use 72.0" in said and "`--gpu H200`: a larger card" in said and "`--tensor 2`: " in said
    assert "adapters (serving.adapters) need one such engine in place of one for each slot, and train on 1 card" in said


def test_more_cards_are_proposed_only_where_they_hold_the_model() -> None:
    small = Engine(Model("32B", qwen("32B")), card_of("24GB", 1.0), 1, 1.0)
    with pytest.raises(DoesNotFit, match=r"`--tensor 8`: an engine on 8 cards.*train on 4 cards"):
        check_fits(small, 512)


@pytest.mark.parametrize(("text", "card"), [("80GB", H100), ("h100", H100), ("141GB", H200), ("H200", H200)])
def test_a_card_is_named_or_chosen_by_its_memory(text: str, card: Card) -> None:
    assert card_of(text) == card


@pytest.mark.parametrize("text", ["80", "0GB", "0.0GB", "-80GB", "", "GB", "80 TB", "1e400GB", "9" * 400 + "GB"])
def test_a_card_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        NotACard, match=r"--gpu: expected a memory such as 80GB.*`tabloop plan capacity .* --gpu 80GB`|no engine was"
    ):
        card_of(text)


@pytest.mark.parametrize("text", ["24GB", "80GiB", "A100", "RTX4090"])
def test_a_card_that_nobody_measured_is_named_with_the_next_command(text: str) -> None:
    with pytest.raises(
        NotACard, match=rf"no engine was measured on '?{text}'?, only on H100 .* and H200 .*`tabloop bench capacity`"
    ):
        card_of(text)


def test_a_rate_of_ones_own_allows_any_card() -> None:
    assert card_of("24GB", 40.0).memory == 24e9
    engines = rows(Engine(card=card_of("24GB", 40.0), given_rate=40.0))["engines"]
    assert "40/s each" in engines.needs and engines.basis.startswith("given by --gpu-rate")
    with pytest.raises(NotACard):
        card_of("A100", 40.0)  # no memory is known by this name


def test_what_a_model_cannot_do_is_refused() -> None:
    with pytest.raises(NotAnEngine, match=r"--tensor 3, expected a divisor of the model's 2 key-value heads"):
        check(Engine(tensor=3), 512)
    with pytest.raises(NotAnEngine, match=r"--prompt 40000: expected at most 32744"):
        check(MEASURED, 40_000)
    with pytest.raises(NotAnEngine, match=r"--gpu-rate 1e-09: expected 0\.001 or more completions a second"):
        check(Engine(given_rate=1e-9), 512)
    arguments = {"serving": {"engine_arguments": {"tensor_parallel_size": "two"}}}
    with pytest.raises(NotAnEngine, match=r"tensor_parallel_size = 'two', expected a whole number above 0"):
        cards_of(Settings.model_validate(arguments))


def test_the_settings_name_the_cards_of_an_engine() -> None:
    assert cards_of(Settings()) == 1
    assert cards_of(Settings.model_validate({"serving": {"engine_arguments": {"tensor_parallel_size": 4}}})) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "config.json cannot be read"),
        ('{"model_type": "qwen2", "hidden_', "config.json cannot be read"),
        ("[]", "config.json is a list, expected an object"),
        ('{"model_type": "mixtral"}', "model_type = 'mixtral', expected one of qwen2, qwen3, llama"),
        (json.dumps(COMMON | QWEN["7B"] | {"num_key_value_heads": "four"}), "num_key_value_heads = 'four', expected a positive"),
        (json.dumps(COMMON | QWEN["7B"] | {"num_hidden_layers": 10**9}), "num_hidden_layers = 1000000000, expected a positive"),
        (json.dumps(COMMON | QWEN["7B"] | {"max_position_embeddings": 24}), "max_position_embeddings = 24, expected more than"),
        (
            json.dumps(COMMON | QWEN["7B"] | {"torch_dtype": "float8_e4m3fn"}),
            "torch_dtype = 'float8_e4m3fn', expected one of bfloat16",
        ),
    ],
)
def test_a_folder_without_a_model_to_plan_for_is_refused_in_a_line(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert cli.main([*COMMAND, "--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"--model {tmp_path}" in error and said in error and "`tabloop plan capacity --requests 10000/day" in error
    assert len(error.splitlines()) == 1


def test_the_command_plans_a_model_on_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMMAND, "--model", str(folder(tmp_path, "7B")), "--gpu", "80GB"]) == 0
    said = capsys.readouterr().out
    assert f"1,536 tokens of prompt, {tmp_path.name} on H100" in said and "15 GB of weights in bfloat16" in said
    assert cli.main([*COMMAND, "--model", str(folder(tmp_path, "32B")), "--gpu", "80GB"]) == 1
    assert "does not fit H100" in capsys.readouterr().err
    assert cli.main([*COMMAND, "--model", "infra/base_model", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["engine"] == {"model": "base_model", "card": "H200", "cards": 1}
    assert planned["load"]["prompt"] == 1000, "as many as the base model reads"


@pytest.mark.parametrize(
    "wrong", [("--gpu", "24GB"), ("--gpu", "80"), ("--prompt", "32745"), ("--tensor", "5"), ("--requests", "0")]
)
def test_wrong_use_of_the_command_names_the_option_and_the_next_command(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMAND, *wrong]) == 2
    error = capsys.readouterr().err
    assert wrong[0] in error and "`tabloop plan capacity --requests 10000/day" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("option", ["--gpu-rate", "--hours", "--core"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_an_option_that_is_no_number_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMMAND, option, value]) == 2
    assert option in capsys.readouterr().err


def test_every_number_is_measured_on_a_machine_or_assumed_or_computed_from_these() -> None:
    for engine in (MEASURED, engine_of("7B", tensor=2), Engine(card=card_of("24GB", 9.0), given_rate=9.0)):
        for row in rows(engine).values():
            assert row.basis.startswith(("measured ", "assumed: ", "computed ", "given by ")), row
            for measured in row.basis.split("measured 2026-")[1:]:
                assert re.match(r"11-\d\d on (the EPYC|the Xeon|an H[12]00): ", measured), row
