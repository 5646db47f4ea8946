"""Multiples to which tensor sizes are padded: oneDNN prepares a kernel for every new shape, so few shapes are fast."""

ROW_MULTIPLE = 16
"""Attention pads its rows to a multiple of this many tokens."""
TOKEN_MULTIPLE = 32
"""Micro-batches and selected positions are padded to a multiple of this many; freed memory then also fits the next one."""
