"""How this machine multiplies matrices best: in float32 by which of torch's two libraries, and whether bfloat16 is faster.

torch has float32 products done by MKL, which keeps to AVX2 on a processor that is not Intel's: 118 GFLOP/s on a core where
oneDNN, which torch brings along for bfloat16, reaches 195 to 275 in the same precision (README.md). There is no setting for it,
so the kernel of the product is put in the place of torch's own. Like the shim that is process-global: only a trainer's process
does it.

All is told by what the processor is, not by a stopwatch: a run that is resumed must multiply as it did before.
"""

import os
from collections.abc import Collection
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
KEPT_KERNELS = 128
"""Products, each of one shape, that oneDNN keeps prepared, 0.3 MB each: its own bound of 1,024 takes more than the model. What
does not fit is prepared again each time, 1 ms with AMX (README.md)."""

LEAST = 256
"""Smallest side of a product that is worth preparing: smaller ones have a new shape in every batch, as the sampled tokens do."""


def processor() -> frozenset[str]:
    """Maker and features of this machine's CPU, as Linux names them."""
    return frozenset(CPU_INFO.read_text().split()) if CPU_INFO.exists() else frozenset()


def faster_in_bf16(processor: Collection[str]) -> bool:
    """Whether this machine multiplies bfloat16 faster than float32.

    GPUs do, CPUs with AMX (530 to 1,590 against 136 to 176 GFLOP/s on a core), and AMD's with AVX512-BF16 (530 against 270);
    Intel's with AVX512-BF16 alone do not (79 against 149).
    """
    return torch.cuda.is_available() or "amx_bf16" in processor or ("avx512_bf16" in processor and "AuthenticAMD" in processor)


def slow_mkl(processor: Collection[str]) -> bool:
    """Whether MKL leaves half of the width of this processor's vectors unused."""
    return "avx512f" in processor and "GenuineIntel" not in processor


def install(processor: Collection[str]) -> torch.library.Library | None:
    """Let oneDNN multiply float32 matrices on a CPU where MKL is slow; in force for as long as what is given back is kept.

    To be called before anything is multiplied.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))
    if not (slow_mkl(processor) and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    linear = torch.ops.mkldnn._linear_pointwise.default
    library = torch.library.Library("aten", "IMPL")

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.float32 and min(*a.shape, *b.shape) >= LEAST:
            if a.stride(0) == 1 and a.size(0) > b.size(1):
                # A transposed first factor is copied before: of a weight's gradient the smaller one.
                return linear(b.t(), a, None, "none", [], "").t()
            return linear(a, b.t(), None, "none", [], "")
        return torch.mm(a, b, out=a.new_empty(a.size(0), b.size(1)))  # another overload, which keeps its own kernel

    library.impl("mm", product, "CPU", allow_override=True)
    return library
