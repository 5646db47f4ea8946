"""The data type that stands for the faster one on this machine."""

import pytest
import torch

from infra.model import processor


@pytest.mark.parametrize(
    ("features", "dtype"), [((), "float32"), (("amx_bf16",), "bfloat16"), (("AuthenticAMD", "avx512_bf16"), "bfloat16")]
)
def test_engines_compute_in_the_faster_type(features: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "processor", lambda: frozenset(features))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert processor.with_dtype({"dtype": processor.FASTEST, "block_size": 32}) == {"dtype": dtype, "block_size": 32}


@pytest.mark.parametrize("given", [{}, {"dtype": "float32"}, {"dtype": "auto"}])
def test_another_type_stays(given: dict[str, str]) -> None:
    assert processor.with_dtype(given) == given
