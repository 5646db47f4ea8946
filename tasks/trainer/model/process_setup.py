"""Prepares this process for Megatron when it is imported: CPU compatibility patches, and oneDNN's matrix product.

Import it before Megatron, and never in a process that runs vLLM: both patches hold for the whole process.
"""

from infra.model.processor import processor
from tasks.trainer.model import cpu_compat, matmul

cpu_compat.install()
LIBRARY = matmul.install(processor())
"""The registration of oneDNN's product, which ends with this object."""
