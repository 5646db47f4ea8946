"""The processor selects the library of matrix products, and oneDNN's matmul equals torch's up to rounding."""

import subprocess
import sys

import pytest

from infra.model.processor import faster_in_bf16
from infra.settings import ROOT
from tasks.trainer.model import matmul

INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@pytest.mark.parametrize(
    ("processor", "bf16", "slow"),
    [
        ((INTEL, "avx512f", "avx512_bf16", "amx_bf16"), True, False),
        ((INTEL, "avx512f", "avx512_bf16"), False, False),
        ((INTEL, "avx2"), False, False),
        ((AMD, "avx512f", "avx512_bf16"), True, True),
        ((AMD, "avx512f"), False, True),
        ((AMD, "avx2"), False, False),
        ((), False, False),
    ],
)
def test_the_processor_selects_precision_and_library(processor: tuple[str, ...], bf16: bool, slow: bool) -> None:
    assert faster_in_bf16(processor) is bf16
    assert matmul.slow_mkl(processor) is slow


PROGRAM = """
import torch
from tasks.trainer.model import matmul

generator = torch.Generator().manual_seed(0)
a, b = torch.randn(300, 280, generator=generator), torch.randn(280, 320, generator=generator)
cases = {  # two matrices, and whether oneDNN multiplies them
    "rows": (a, b, True),
    "a transposed": (a.t().contiguous().t(), b, True),
    "b transposed": (a, b.t().contiguous().t(), True),
    "a transposed and larger": (a.t().contiguous().t(), b[:, :270], True),
    "a part": (a[:, 3:270], b[3:270, :260], True),
    "small": (a[::2, 3:30], b[3:30, :7], False),
    "double": (a.double(), b.double(), False),
    "nothing": (a[:0], b, False),
    "no sum": (a[:, :0], b[:0], False),
    "whole numbers": (a.long(), b.long(), False),
}
expected = {name: x @ y for name, (x, y, _) in cases.items()}
library = matmul.install(("AuthenticAMD", "avx512f"))
for name, (x, y, by_onednn) in cases.items():
    with torch.profiler.profile() as profile:
        product = x @ y
    assert any("mkldnn" in event.key for event in profile.key_averages()) is by_onednn, name
    assert product.dtype == expected[name].dtype and product.shape == expected[name].shape, name
    torch.testing.assert_close(product, expected[name], rtol=1e-5, atol=1e-4)
    assert torch.equal(product, x @ y), name
x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
(x @ y).square().sum().backward()
torch.testing.assert_close(x.grad, 2 * expected["rows"] @ b.t(), rtol=1e-4, atol=1e-2)
torch.testing.assert_close(y.grad, 2 * a.t() @ expected["rows"], rtol=1e-4, atol=1e-2)
assert library is not None and matmul.install(("GenuineIntel", "avx512f")) is None
"""


def test_onednns_matmul_equals_torchs() -> None:
    """The test uses a separate process, because the kernel is registered for a whole process."""
    process = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
