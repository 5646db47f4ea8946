"""Checkpoints of other architectures, and incomplete ones, are refused by name from config.json and headers alone."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from infra.model import architectures
from infra.model.architectures import UnsupportedCheckpoint
from infra.settings import ROOT
from infra.settings.model import Model

SIZES = {
    **{"vocab_size": 96, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 24, "tie_word_embeddings": False},
    "llama": {"head_dim": 32},
    "llama with biases": {"attention_bias": True, "tie_word_embeddings": True},
    "qwen3 with biases": {"attention_bias": True},
}


def write(directory: Path, family: str, changes: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES, **changes)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("plain"), "qwen2", {"tie_word_embeddings": True})


@pytest.fixture
def copied(plain, tmp_path) -> Path:
    for file in plain.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tensors_are_those_that_transformers_writes(tmp_path, name):
    directory = write(tmp_path, name.split(" ")[0], FAMILIES[name])
    architecture = architectures.check(directory)
    written = load_file(directory / "model.safetensors")
    assert architecture.tensors() == {key: tuple(tensor.shape) for key, tensor in written.items()}
    assert architecture.parameters == sum(tensor.numel() for tensor in written.values())


def test_the_published_shape_of_a_small_model_has_its_published_number_of_parameters() -> None:
    """Qwen2.5-Coder-0.5B."""
    sizes = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32_768}
    config = {"model_type": "qwen2", **sizes, **heads, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True}
    assert architectures.parse(config, "the shape").parameters == 494_032_768


@pytest.mark.timing(reason="bounds CPU time")
def test_the_shipped_base_model_passes_in_under_a_second():
    started = time.process_time()
    assert architectures.check(ROOT / Model().base).family == "qwen2"
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "starcoder2"}, r"model_type = 'starcoder2', expected one of qwen2, qwen3, llama; choose a checkpoint of"),
        ({"model_type": None}, "model_type = None"),
        ({"use_sliding_window": True}, "use_sliding_window = True, expected full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .*expected full attention"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu', expected 'silu'"),
        ({"mlp_bias": True}, "mlp_bias = True, expected false"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3, expected a divisor of num_attention_heads = 4"),
        ({"hidden_size": "64"}, "hidden_size = '64', expected a positive integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, expected a positive integer up to 1,000;"),
        ({"vocab_size": 10**400}, "vocab_size = 1000.*, expected a positive integer up to 16,777,216;"),
        ({"head_dim": 10**9}, "head_dim = 1000000000, expected a positive integer up to 16,777,216, or none"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan, expected a number such as 1e-06"),
        ({"rope_parameters": None, "rope_theta": 10**400}, "rope_theta = 1000.*, expected a number above 0"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type = 'llama3', expected 'default'"),
        ({"layer_types": 3}, "layer_types = 3, expected a list, or none"),
        ({"rope_parameters": "default"}, "rope_parameters = 'default', expected an object, or none"),
        ({"rope_parameters": None, "rope_scaling": True}, "rope_scaling = True, expected an object, or none"),
        ({"rope_parameters": None, "rope_theta": "1e4"}, "rope_theta = '1e4', expected a number above 0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .*expected none"),
    ],
)
def test_another_configuration_is_refused_by_its_key(copied, changes, message):
    config = json.loads((copied / "config.json").read_text()) | changes
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedCheckpoint, match=message):
        architectures.check(copied)


def test_missing_left_over_and_misshapen_tensors_are_named(copied):
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.bias"]
    tensors["model.layers.1.self_attn.q_norm.weight"] = torch.ones(16)
    tensors["model.norm.weight"] = torch.ones(63)
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(UnsupportedCheckpoint) as raised:
        architectures.check(copied)
    assert "3 of 26 tensors do not fit a qwen2" in str(raised.value)
    for part in ("0.self_attn.q_proj.bias is missing", "q_norm.weight is left over", "has shape [63], expected [64]"):
        assert part in str(raised.value)


def test_a_copy_of_a_tied_embedding_is_no_left_over_tensor(copied):
    tensors = load_file(copied / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, copied / "model.safetensors")
    architectures.check(copied)


NO_END = b'{"a": {"shape": [1], "data_offsets": [0, null]}}'


@pytest.mark.parametrize(
    "body", [b"", b"\xff" * 64, *(len(text).to_bytes(8, "little") + text for text in (b"{....", b"[]", NO_END))]
)
def test_a_file_of_another_format_is_refused(copied, body):
    (copied / "model.safetensors").write_bytes(body)
    with pytest.raises(UnsupportedCheckpoint, match=r"model.safetensors: not a safetensors file"):
        architectures.check(copied)


def test_a_truncated_file_is_refused(copied):
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UnsupportedCheckpoint, match="download it again"):
        architectures.check(copied)


@pytest.mark.parametrize("body", [None, "{", "[]"])
def test_a_missing_or_broken_configuration_is_refused(copied, body):
    (copied / "config.json").unlink() if body is None else (copied / "config.json").write_text(body)
    with pytest.raises(UnsupportedCheckpoint, match=r"config.json"):
        architectures.check(copied)
