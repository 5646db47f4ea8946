"""An adapter's files are peft's, its merged weights are base + BA, and damaged or foreign adapters are refused by name."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from infra import cli
from infra.model import adapters, architectures
from infra.model.adapter_files import UnsuitableAdapter, merge, read_adapter, weights_sha256, write_adapter
from infra.model.stored_tensors import WEIGHTS
from infra.registry.client import Registry
from infra.storage.store import ObjectStore
from tests.tasks.made import MemoryRegistry, MemoryStore
from tests.tasks.trainer.models import OTHERS, tiny

RANK = 3


def written(folder: Path, model: PreTrainedModel, frozen_layers: int = 0) -> tuple[Path, Path]:
    """Write a model and a random adapter of it; return both folders."""
    base, adapter = folder / "base", folder / "adapter"
    model.save_pretrained(base)
    architecture = architectures.check(base)
    generator = torch.Generator().manual_seed(1)
    shapes = adapters.tensors(architecture, RANK, frozen_layers)
    adapter.mkdir()
    tensors = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    write_adapter(adapter, tensors, architecture, RANK, frozen_layers, base)
    return base, adapter


@pytest.mark.parametrize("frozen_layers", [0, 1])
@pytest.mark.parametrize("family", [{}, OTHERS["untied"], OTHERS["Qwen3"], OTHERS["Llama with biases"]], ids=str)
def test_merged_weights_are_the_base_and_ba_and_those_of_peft(tmp_path: Path, family: dict, frozen_layers: int) -> None:
    model = tiny(**family)
    base, adapter = written(tmp_path, model, frozen_layers)
    merge(base, adapter, tmp_path / "merged")
    merged, before = (load_file(folder / WEIGHTS) for folder in (tmp_path / "merged", base))
    tensors, rank = read_adapter(adapter, base)
    assert (rank, len(tensors)) == (RANK, 14 * (2 - frozen_layers))
    for name, tensor in before.items():
        a, b = adapters.names(name.removesuffix(".weight"))
        exact = tensor.double() + (32 / RANK * tensors[b].double() @ tensors[a].double() if a in tensors else 0)
        torch.testing.assert_close(merged[name].double(), exact, rtol=1e-6, atol=1e-6)
        assert (a in tensors) == (not torch.equal(merged[name], tensor))
    ids = torch.tensor([[3, 7, 30, 11]])
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(copy.deepcopy(model), adapter)
        with_peft = loaded(ids).logits
        model.load_state_dict(merged, strict=False)
        torch.testing.assert_close(with_peft, model(ids).logits, rtol=1e-4, atol=1e-4)
    config = loaded.peft_config["default"].to_dict()
    assert (config["r"], config["lora_alpha"]) == (RANK, adapters.ALPHA)


def test_the_checksum_of_the_base_is_that_of_its_weights_file(tmp_path: Path) -> None:
    base, adapter = written(tmp_path, tiny())
    header = (adapter / adapters.WEIGHTS_NAME).read_bytes()[:2000]
    assert weights_sha256(base).encode() in header


def foreign(base: Path, adapter: Path) -> None:
    tiny(seed=8).save_pretrained(base)


def of_a_layer_too_many(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {name.replace(".layers.1.", ".layers.7."): t for name, t in tensors.items()})


def of_another_width(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {name: t[:, :2].contiguous() for name, t in tensors.items()})


def incomplete(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {name: t for name, t in tensors.items() if "q_proj.lora_B" not in name})


def empty(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {})


def not_finite(base: Path, adapter: Path) -> None:
    rewritten(
        adapter, lambda tensors: {name: t / 0 if "layers.1.mlp.up_proj.lora_B" in name else t for name, t in tensors.items()}
    )


def truncated(base: Path, adapter: Path) -> None:
    file = adapter / adapters.WEIGHTS_NAME
    file.write_bytes(file.read_bytes()[:-100])


def without_weights(base: Path, adapter: Path) -> None:
    (adapter / adapters.WEIGHTS_NAME).unlink()


def of_another_scale(base: Path, adapter: Path) -> None:
    reconfigured(adapter, lora_alpha=16)


def of_another_kind(base: Path, adapter: Path) -> None:
    reconfigured(adapter, peft_type="IA3")


def without_configuration(base: Path, adapter: Path) -> None:
    (adapter / adapters.CONFIG_NAME).unlink()


def of_integers(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {name: t.to(torch.int8) for name, t in tensors.items()})


def of_eight_bits(base: Path, adapter: Path) -> None:
    rewritten(adapter, lambda tensors: {name: t.to(torch.float8_e4m3fn) for name, t in tensors.items()})


def of_a_scale_for_some_layers(base: Path, adapter: Path) -> None:
    reconfigured(adapter, alpha_pattern={"q_proj": 64})


def of_fewer_layers_than_it_names(base: Path, adapter: Path) -> None:
    reconfigured(adapter, target_modules=["q_proj"])


def of_layers_below_those_it_names(base: Path, adapter: Path) -> None:
    reconfigured(adapter, layers_to_transform=[1], layers_pattern="layers")


def of_a_layer_named_by_a_number(base: Path, adapter: Path) -> None:
    reconfigured(adapter, layers_to_transform=1)


def of_a_deep_configuration(base: Path, adapter: Path) -> None:
    (adapter / adapters.CONFIG_NAME).write_text("[" * 200_000)


def of_a_large_configuration(base: Path, adapter: Path) -> None:
    reconfigured(adapter, note="x" * (1 << 20))


def rewritten(adapter: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = adapter / adapters.WEIGHTS_NAME
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(change(load_file(file)), file, metadata=metadata)


def reconfigured(adapter: Path, **changes: object) -> None:
    file = adapter / adapters.CONFIG_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (foreign, "it is an adapter of another base; name the checkpoint that it was trained on"),
        (of_a_layer_too_many, "model.layers.7.mlp.down_proj.lora_A.weight: the base has no such layer"),
        (of_another_width, "lora_A.weight has shape [3, 2], expected [3, 160]"),
        (incomplete, "model.layers.0.self_attn.q_proj.lora_B.weight is missing"),
        (empty, "the adapter has no tensors"),
        (not_finite, "model.layers.1.mlp.up_proj.lora_B.weight has values that are not finite (1 of 28 tensors)"),
        (truncated, "no whole safetensors file"),
        (without_weights, "no whole safetensors file"),
        (of_another_scale, "lora_alpha = 16, expected 32"),
        (of_another_kind, "peft_type = 'IA3', expected 'LORA'"),
        (without_configuration, "adapter_config.json: cannot be read (FileNotFoundError"),
        (
            of_integers,
            "model.layers.0.mlp.down_proj.lora_A.weight has type int8, expected float32, bfloat16 or float16 (28 of 28",
        ),
        (of_eight_bits, "has type float8_e4m3fn, expected float32, bfloat16 or float16"),
        (of_a_scale_for_some_layers, "alpha_pattern = {'q_proj': 64}, expected {}"),
        (of_fewer_layers_than_it_names, "target_modules = ['q_proj'], expected ['down_proj', 'gate_proj'"),
        (of_layers_below_those_it_names, "model.layers.0.mlp.down_proj.lora_A.weight is below layer 1"),
        (of_a_layer_named_by_a_number, "layers_to_transform = 1, expected none, or the numbers of the highest layers in order"),
        (of_a_deep_configuration, "adapter_config.json: cannot be read (RecursionError"),
        (of_a_large_configuration, "adapter_config.json: cannot be read (ValueError: 1048"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_command_refuses_a_damaged_or_foreign_adapter_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path, Path], None], message: str
) -> None:
    base, adapter = written(tmp_path, tiny())
    damage(base, adapter)
    assert cli.main(["merge", str(adapter), str(tmp_path / "merged"), "--base", str(base)]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"base", "adapter"}
    with pytest.raises(UnsuitableAdapter):
        read_adapter(adapter, base)


def test_merged_weights_that_are_not_finite_are_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = written(tmp_path, tiny())
    rewritten(adapter, lambda tensors: {name: 1e30 * t for name, t in tensors.items()})
    assert cli.main(["merge", str(adapter), str(tmp_path / "merged"), "--base", str(base)]) == 2
    assert "model.layers.0.mlp.down_proj.weight of the merged weights has values that are not finite" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"base", "adapter"}


def test_a_version_whose_weights_are_gone_is_no_defect_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    monkeypatch.setattr(ObjectStore, "connect", lambda settings: store)
    monkeypatch.setattr(Registry, "connect", lambda settings: registry.client)
    monkeypatch.setenv("TABLOOP_TRAIN__FOLDER", str(tmp_path))
    for bucket, code, message in (
        ("tabloop", 1, "checkpoints/base: checksums.json is missing: the upload has not finished, or retention removed"),
        ("another", 2, "source 's3://another/checkpoints/base': expected s3://tabloop/checkpoints/NAME"),
    ):
        registry.bucket = bucket
        assert cli.main(["merge", "1", str(tmp_path / "merged")]) == code
        assert message in capsys.readouterr().err


def test_a_base_is_named_by_its_number_alone(tmp_path: Path) -> None:
    file = tmp_path / adapters.BASE_NAME
    file.write_text(json.dumps({"version": "7", "source": "s3://tabloop/checkpoints/base"}))
    assert adapters.base_version(tmp_path).version == "7"
    # An engine makes a folder of the name, in place of what is there.
    file.write_text(json.dumps({"version": "../..", "source": "s3://tabloop/checkpoints/base"}))
    with pytest.raises(UnsuitableAdapter, match="expected version and source of the adapter's base"):
        adapters.base_version(tmp_path)


def test_the_command_writes_a_checkpoint_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = written(tmp_path, tiny())
    command = ["merge", str(adapter), str(tmp_path / "merged"), "--base", str(base)]
    assert cli.main(command) == 0
    architectures.check(tmp_path / "merged")
    assert cli.main(command) == 2
    assert "is there already" in capsys.readouterr().err
    assert cli.main(["merge", str(adapter), str(tmp_path / "other"), "--base", str(tmp_path)]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err
    assert cli.main(["merge", str(adapter), str(tmp_path / "other")]) == 2
    assert "the directory of an adapter with --base" in capsys.readouterr().err
