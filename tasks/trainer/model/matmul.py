"""The faster matrix product of torch's two libraries for float32.

torch computes float32 matmuls with MKL, which uses only AVX2 on processors that are not Intel's; oneDNN, which torch ships for
bfloat16, is about twice as fast there (infra/docs/measurements.md). torch has no setting for it, so `install` registers another
kernel for the matmul. The registration holds for the whole process: only trainer processes call it.

The processor's features decide, not a measurement: a resumed run must multiply as the first one did.
"""

import os
from collections.abc import Collection

import torch

CACHED_KERNELS = 128
"""Matmul shapes whose kernels oneDNN caches, 0.3 MB each: its default of 1,024 takes more memory than the model. Preparing a
kernel again takes about 1 ms."""

MIN_SIDE = 256
"""Smallest side of a matmul that oneDNN computes: smaller ones, such as those over sampled tokens, have a new shape in every
batch."""


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
