"""Which library multiplies, told by the processor; and that oneDNN's product is torch's own to rounding."""

import subprocess
import sys

import pytest

from infra.settings import ROOT
from tasks.trainer import products

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
def test_the_processor_tells_what_is_fast(processor: tuple[str, ...], bf16: bool, slow: bool) -> None:
    assert products.faster_in_bf16(processor) is bf16
    assert products.slow_mkl(processor) is slow


PROGRAM = """
import torch
from tasks.trainer import products

made = torch.Generator().manual_seed(0)
a, b = torch.randn(96, 40, generator=made), torch.randn(40, 56, generator=made)
cases = {
    "rows": (a, b), "a transposed": (a.t().contiguous().t(), b), "b transposed": (a, b.t().contiguous().t()),
    "a part": (a[::2, 3:30], b[3:30, :7]), "double": (a.double(), b.double()), "bfloat16": (a.bfloat16(), b.bfloat16()),
    "nothing": (a[:0], b), "no sum": (a[:, :0], b[:0]), "whole numbers": (a.long(), b.long()),
}
expected = {name: x @ y for name, (x, y) in cases.items()}
kept = products.install(("AuthenticAMD", "avx512f"))
for name, (x, y) in cases.items():
    found = x @ y
    assert found.dtype == expected[name].dtype and found.shape == expected[name].shape, name
    torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-5)
    assert torch.equal(found, x @ y), name
x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
(x @ y).square().sum().backward()
torch.testing.assert_close(x.grad, 2 * expected["rows"] @ b.t(), rtol=1e-4, atol=1e-4)
torch.testing.assert_close(y.grad, 2 * a.t() @ expected["rows"], rtol=1e-4, atol=1e-4)
assert kept is not None and products.install(("GenuineIntel", "avx512f")) is None
"""


def test_a_product_by_onednn_is_the_product() -> None:
    """In a process of its own: the kernel is the whole process's."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
