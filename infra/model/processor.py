"""This machine's processor, and whether it multiplies bfloat16 faster than float32: for the trainer and the engines.

The processor's features decide, not a measurement: a resumed run must multiply as the first one did.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")
FASTEST = "fastest"
"""Name that stands for the data type that this machine multiplies faster."""


def processor() -> frozenset[str]:
    """Return the maker and features of this machine's CPU, by Linux's names."""
    return frozenset(CPU_INFO.read_text().split()) if CPU_INFO.exists() else frozenset()


def faster_in_bf16(processor: Collection[str]) -> bool:
    """Return whether this machine multiplies bfloat16 faster than float32.

    GPUs, CPUs with AMX, and AMD's with AVX512-BF16 do; Intel's with AVX512-BF16 but without AMX do not.
    """
    import torch  # takes a second

    return torch.cuda.is_available() or "amx_bf16" in processor or ("avx512_bf16" in processor and "AuthenticAMD" in processor)


def with_dtype(engine_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of an engine (serving.engine_arguments) with the name of a data type in place of FASTEST."""
    given = dict(engine_arguments)
    if given.get("dtype") == FASTEST:
        given["dtype"] = "bfloat16" if faster_in_bf16(processor()) else "float32"
    return given
