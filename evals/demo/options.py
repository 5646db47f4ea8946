"""The options of a demo."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Frozen options of a demo."""

    seed: int = 0
    """Seed of the simulated developers."""
    users: int = 1000
    """Number of developers."""
    code: Sequence[Path] = ()
    """Folders of the Python files that they type; empty: the held-out packages."""
    cycles: int = 1
    """Cycles to run, including those of earlier demos."""
    labels: int = 4800
    """Minimum requests that a cycle waits for."""
    minutes: float = 12.0
    """Minutes after which no cycle begins."""
    visits: int = 4000
    """Positions of the closing comparison in later code."""
    rate: float = 0.0
    """Maximum requests a second; 0: limited by `concurrency` only."""
    concurrency: int = 96
    """Developers who type at the same time."""
