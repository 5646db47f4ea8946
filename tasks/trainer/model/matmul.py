"""The fastest matrix product of this machine: which of torch's two libraries for float32, and whether bfloat16 is faster.

torch computes float32 matmuls with MKL, which uses only AVX2 on processors that are not Intel's; oneDNN, which torch ships for
bfloat16, is about twice as fast there (infra/docs/measurements.md). torch has no setting for it, so `install` registers another
kernel for the matmul. The registration holds for the whole process: only trainer processes call it.

The processor's features decide, not a measurement: a resumed run must multiply as the first one did.
"""

import os
from collections.abc import Collection
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
CACHED_KERNELS = 128
"""Matmul shapes whose kernels oneDNN caches, 0.3 MB each: its default of 1,024 takes more memory than the model. Preparing a
kernel again takes about 1 ms."""

MIN_SIDE = 256
"""Smallest side of a matmul that oneDNN computes: smaller ones, such as those over sampled tokens, have a new shape in every
batch."""


def processor() -> frozenset[str]:
    """Return the maker and features of this machine's CPU, by Linux's names."""
    return frozenset(CPU_INFO.read_text().split()) if CPU_INFO.exists() else frozenset()


def faster_in_bf16(processor: Collection[str]) -> bool:
    """Return whether this machine multiplies bfloat16 faster than float32.

    GPUs, CPUs with AMX, and AMD's with AVX512-BF16 do; Intel's with AVX512-BF16 but without AMX do not.
    """
    return torch.cuda.is_available() or "amx_bf16" in processor or ("avx512_bf16" in processor and "AuthenticAMD" in processor)


def slow_mkl(processor: Collection[str]) -> bool:
    """Return whether MKL uses only half the width of this processor's vectors."""
    return "avx512f" in processor and "GenuineIntel" not in processor


def install(processor: Collection[str]) -> torch.library.Library | None:
    """Let oneDNN multiply float32 matrices on a CPU where MKL is slow; return the registration, which ends with the object.

    Call it before the first matmul.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(CACHED_KERNELS))
    if not (slow_mkl(processor) and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    linear = torch.ops.mkldnn._linear_pointwise.default
    library = torch.library.Library("aten", "IMPL")

    def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype is torch.float32 and min(*a.shape, *b.shape) >= MIN_SIDE:
            if a.stride(0) == 1 and a.size(0) > b.size(1):
                # oneDNN copies a transposed first factor: this makes it the smaller one of a weight's gradient.
                return linear(b.t(), a, None, "none", [], "").t()
            return linear(a, b.t(), None, "none", [], "")
        return torch.mm(a, b, out=a.new_empty(a.size(0), b.size(1)))  # this overload keeps torch's kernel

    library.impl("mm", matmul, "CPU", allow_override=True)
    return library
