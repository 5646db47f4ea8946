"""The architectures that tabloop serves and trains: a checkpoint is refused by name before anything loads it.

Reads config.json and the headers of the safetensors files, never their tensors. Imports no torch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from infra.model.tensor_layout import NotSafetensors, read_layout

Family = Literal["qwen2", "qwen3", "llama"]
FAMILIES: tuple[Family, ...] = ("qwen2", "qwen3", "llama")
"""Values of `model_type` in config.json: Qwen2 and Qwen2.5, Qwen3 without experts, Llama and models with its layers."""
MOST_SIZE, MOST_LAYERS = 1 << 24, 1_000
"""Above those of all published models. To plan with more takes minutes and all memory."""
SIZES = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"), MOST_SIZE),
    **{"num_hidden_layers": MOST_LAYERS, "max_position_embeddings": MOST_SIZE},
}
"""Keys of config.json that are sizes, each with its largest value."""
WEIGHT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a weight by its type in config.json (`dtype`, before that `torch_dtype`)."""
MOST_THETA = 1e30
"""Largest base of the rotary embedding; an integer in JSON may be beyond all floats."""
MOST_NAMED = 3
"""Most tensors that an error names."""


class UnsupportedCheckpoint(ValueError):
    """A checkpoint of another architecture, or with tensors missing or left over."""


@dataclass(frozen=True)
class Architecture:
    """The fields of config.json that trainer and engines use."""

    family: Family
    layers: int
    hidden: int
    mlp: int
    """Width of the gated MLP."""
    heads: int
    groups: int
    """Key-value heads."""
    head: int
    """Width of a head."""
    vocabulary: int
    positions: int
    """Longest sequence in tokens."""
    epsilon: float
    """Added to the mean square by the norms."""
    rope_theta: float
    """Base of the rotary embedding."""
    tied: bool
    """Whether the output layer is the embedding."""
    qkv_bias: bool
    """Whether queries, keys and values have biases."""
    output_bias: bool
    """Whether the attention's output has a bias."""
    qk_norm: bool
    """Whether the heads of queries and keys are normalised."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the checkpoint, by its Hugging Face name."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self.layer().items()}
        return shapes

    def layer(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of one layer, by its name in the layer."""
        queries, keys = self.heads * self.head, self.groups * self.head
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (queries, self.hidden),
            "self_attn.k_proj.weight": (keys, self.hidden),
            "self_attn.v_proj.weight": (keys, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, queries),
            "mlp.gate_proj.weight": (self.mlp, self.hidden),
            "mlp.up_proj.weight": (self.mlp, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.mlp),
        }
        if self.qkv_bias:
            shapes |= {
                "self_attn.q_proj.bias": (queries,),
                "self_attn.k_proj.bias": (keys,),
                "self_attn.v_proj.bias": (keys,),
            }
        if self.output_bias:
            shapes["self_attn.o_proj.bias"] = (self.hidden,)
        if self.qk_norm:
            shapes |= {"self_attn.q_norm.weight": (self.head,), "self_attn.k_norm.weight": (self.head,)}
        return shapes

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied embedding counts once."""
        return sum(prod(shape) for shape in self.tensors().values())


def parse(config: Mapping[str, Any], source: str) -> Architecture:
    """Return the architecture that a config.json describes; `source` names the checkpoint in errors.

    Raises:
        UnsupportedCheckpoint: names the key, its value and what was expected.
    """

    def refuse(key: str, expected: str) -> UnsupportedCheckpoint:
        value = repr(config[key]) if key in config else "missing"
        return UnsupportedCheckpoint(
            f"{source}: config.json: {key} = {value}, expected {expected}; choose a checkpoint of {_in_words(FAMILIES)}"
        )

    family = config.get("model_type")
    if family not in FAMILIES:
        raise refuse("model_type", f"one of {', '.join(FAMILIES)}")
    for key, most in SIZES.items():
        if type(config.get(key)) is not int or not 0 < config[key] <= most:
            raise refuse(key, f"a positive integer up to {most:,}")
    for key in ("num_key_value_heads", "head_dim"):
        if config.get(key) is not None and (type(config[key]) is not int or not 0 < config[key] <= MOST_SIZE):
            raise refuse(key, f"a positive integer up to {MOST_SIZE:,}, or none")
    for key, kind, words in (
        ("layer_types", list, "a list"),
        ("rope_parameters", dict, "an object"),
        ("rope_scaling", dict, "an object"),
    ):
        if not isinstance(config.get(key) or kind(), kind):
            raise refuse(key, f"{words}, or none")
    if not isinstance(config.get("rms_norm_eps"), float) or not 0 < config["rms_norm_eps"] < 1:
        raise refuse("rms_norm_eps", "a number such as 1e-06")
    if config.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act", "'silu'")
    if config.get("mlp_bias"):
        raise refuse("mlp_bias", "false: the trainer's MLP has no biases")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise refuse("use_sliding_window" if config.get("use_sliding_window") else "layer_types", "full attention in every layer")
    if config.get("quantization_config"):
        raise refuse("quantization_config", "none: the trainer needs the weights themselves")
    heads, groups = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    if heads % groups:
        raise refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    head = config.get("head_dim") or config["hidden_size"] // heads
    if head * heads != config["hidden_size"] and not config.get("head_dim"):
        raise refuse("num_attention_heads", f"a divisor of hidden_size = {config['hidden_size']}, or a head_dim")
    if head % 2:
        raise refuse("head_dim", "an even width, whose halves the rotary embedding turns")
    attention_bias = family != "qwen2" and bool(config.get("attention_bias"))
    return Architecture(
        family=family,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        mlp=config["intermediate_size"],
        heads=heads,
        groups=groups,
        head=head,
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        epsilon=float(config["rms_norm_eps"]),
        rope_theta=_rope_theta(config, source),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        qk_norm=family == "qwen3",
    )


def read(directory: Path) -> Architecture:
    """Return the architecture of a checkpoint in Hugging Face's layout, from its config.json alone. Raises
    UnsupportedCheckpoint if there is no readable config.json, or another architecture."""
    return parse(read_config(directory), str(directory))


def read_config(directory: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json. Raises UnsupportedCheckpoint if there is no readable one."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedCheckpoint(
            f"{directory}: config.json cannot be read ({error}), expected a checkpoint in Hugging Face's layout"
        ) from None
    if not isinstance(config, dict):
        raise UnsupportedCheckpoint(f"{directory}: config.json is a {type(config).__name__}, expected an object")
    return config


def dtype(config: Mapping[str, Any], source: str) -> str:
    """Return the type of the weights that a config.json names; empty if it names no type. Raises UnsupportedCheckpoint if it is
    not one of WEIGHT_BYTES; `source` names the checkpoint."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    name = config.get(key)
    if name is None:
        return ""
    if not isinstance(name, str) or name not in WEIGHT_BYTES:
        raise UnsupportedCheckpoint(f"{source}: config.json: {key} = {name!r}, expected one of {', '.join(WEIGHT_BYTES)}")
    return name


def check(directory: Path) -> Architecture:
    """Return a checkpoint's architecture after checking that its files contain exactly its tensors.

    Raises:
        UnsupportedCheckpoint: names the key, or the first tensors that are missing, left over or of another shape.
    """
    architecture = read(directory)
    actual = dict(_stored(directory))
    expected = architecture.tensors()
    if architecture.tied:
        actual.pop("lm_head.weight", None)  # a copy of the embedding, which some tools write beside it
    problems = [
        *(f"{name} is missing" for name in expected.keys() - actual.keys()),
        *(f"{name} is left over" for name in actual.keys() - expected.keys()),
        *(
            f"{name} has shape {list(actual[name])}, expected {list(expected[name])}"
            for name in expected.keys() & actual.keys()
            if actual[name] != expected[name]
        ),
    ]
    if problems:
        named = "; ".join(sorted(problems)[:MOST_NAMED])
        raise UnsupportedCheckpoint(
            f"{directory}: {len(problems)} of {len(expected)} tensors do not fit a {architecture.family} of this config.json: "
            f"{named}"
        )
    return architecture


def _stored(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor, from the files' headers. Raises UnsupportedCheckpoint if there is no file, or one
    is not a whole safetensors file."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UnsupportedCheckpoint(f"{directory}: no *.safetensors, expected the weights in Hugging Face's layout")
    for file in files:
        try:
            yield from ((tensor.name, tensor.shape) for tensor in read_layout(file).tensors)
        except (OSError, NotSafetensors) as error:
            why = str(error).removeprefix(f"{file}: ")
            raise UnsupportedCheckpoint(f"{file}: not a safetensors file ({why}); download it again") from None


def _rope_theta(config: Mapping[str, Any], source: str) -> float:
    rope = config.get("rope_parameters") or {**config, **(config.get("rope_scaling") or {})}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise UnsupportedCheckpoint(
            f"{source}: config.json: rope_type = {kind!r}, expected 'default': the trainer supports no stretched rotary "
            "embeddings; start from the base checkpoint without them"
        )
    theta = rope.get("rope_theta") or 10000.0
    if type(theta) not in (int, float) or not 0 < theta < MOST_THETA:
        raise UnsupportedCheckpoint(f"{source}: config.json: rope_theta = {theta!r}, expected a number above 0, such as 10000.0")
    return float(theta)


def _in_words(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
