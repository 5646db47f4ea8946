"""Peaks of GPUs by the makers' data sheets. Imports no torch."""

PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Operations per second in dense bfloat16, by a part of the GPU's name."""
FLOAT32_PEAKS = {"H200": 67e12, "H100": 67e12}
"""The same in float32."""
BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12}
"""Bytes per second of the memory, by the GPU's name; those of the SXM form."""
