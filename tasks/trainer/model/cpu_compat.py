"""Compatibility patches that let megatron-core 0.16 run on CPU: they redirect its hard-wired CUDA calls.

`install()` changes nothing where CUDA is usable. Its patches hold for the whole process: call it first in a trainer process, and
never in one that runs vLLM.
"""

# mypy: disable-error-code="assignment,return-value"

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")
FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange")


def install() -> bool:
    """Make the unmodified GPU code path of megatron-core run on CPU; return whether anything was patched."""
    patched = not torch.cuda.is_available()
    if patched:
        # Megatron's jit_fuser would compile tiny helpers with the C++ compiler, once per shape; its decorator alone imports
        # torch's compiler (seconds), so this precedes Megatron's import.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        if "triton" not in sys.modules:
            sys.modules["triton"] = None  # a compiler for GPUs, 70 MB; its importers work without it
        torch.compile = lambda function=None, **_: function if function else lambda decorated: decorated
        _redirect_devices()
        _redirect_random_state()
        _redirect_streams()
    return patched


def _redirect_devices() -> None:
    torch.cuda.current_device = lambda: CPU
    torch.cuda.set_device = torch.cuda.empty_cache = lambda *_, **__: None
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self
    original = torch.Tensor.type

    def tensor_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *([] if dtype is None else [dtype]), *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # Megatron's optimizer asserts on 'torch.cuda.FloatTensor'.
        if dtype is None and caller.startswith("megatron.core.optimizer"):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    torch.Tensor.type = tensor_type


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and not isinstance(device, int) and str(device).startswith("cuda"):
            kwargs["device"] = CPU
            kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return on_cpu


def _redirect_random_state() -> None:
    def get_state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = get_state
    torch.cuda.set_rng_state = torch.cuda.random.set_rng_state = set_state
    torch.cuda.manual_seed = torch.cuda.random.manual_seed = torch.default_generator.manual_seed
    import megatron.core.tensor_parallel.random as tracker

    tracker._set_cuda_rng_state = set_state


class _NoStream:
    """A CUDA stream that does nothing."""

    def __enter__(self) -> "_NoStream":
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _redirect_streams() -> None:
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_, **__: _NoStream()
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_, **__: None
