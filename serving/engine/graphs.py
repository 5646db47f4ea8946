"""The CUDA graphs of a GPU's engine. This module does not import vLLM."""

from collections.abc import Mapping
from typing import Any

SIZES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256),
    *(288, 320, 384, 448, 512, 544, 640, 768, 1024, 1280, 1600),
)
"""Numbers of tokens for which graphs are captured. vLLM's own end at twice max_num_seqs, below most prompts. Outside the graphs,
the launches of kernels take most of the time to the first token (infra/docs/measurements.md, "GPU")."""


def graphs(arguments: Mapping[str, Any], as_adapters: bool) -> dict[str, Any]:
    """Return vLLM's compilation_config for its other arguments; what these say about graphs stays.

    Args:
        as_adapters: whether the engine holds versions as adapters, of which each request has one.
    """
    config = dict(arguments.get("compilation_config") or {})
    if not {"cudagraph_capture_sizes", "max_cudagraph_capture_size"} & (arguments.keys() | config.keys()):
        config["cudagraph_capture_sizes"] = sorted({*SIZES, arguments.get("max_num_seqs", 1)})
    if as_adapters:  # graphs without one would only take time and memory
        config.setdefault("cudagraph_specialize_lora", False)
    return config
