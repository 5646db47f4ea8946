"""What the status page shows of registry and object store: the gate's last look at a test, the newest versions and cycles."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.records import Decision
from infra.registry import ModelVersion, Registry
from serving.cycles import Cycle, Cycles

BOARD_SECONDS = 5.0
MOST_VERSIONS = 12
MOST_CYCLES = 8
WAIT_SECONDS = 3.0
"""Longest that the page waits for a registry or a store that does not answer."""


@dataclass(frozen=True)
class Links:
    """Where the page points to: addresses that a browser reaches."""

    mlflow: str
    prefect: str
    model: str
    """Name of the registered model."""


@dataclass
class Board:
    """What registry and store say, asked for at most every few seconds and kept when they are away."""

    registry: Registry
    trained: Cycles
    look: Decision | None = None
    versions: list[ModelVersion] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _asked: float = -math.inf
    _reading: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Read it again where it is old; what cannot be read is said."""
        now = self.clock()
        if now - self._asked < BOARD_SECONDS:
            return
        self._asked = now
        await asyncio.gather(self._read("versions", self._versions), self._read("cycles", self._cycles))

    async def _read(self, part: str, read: Callable[[], None]) -> None:
        task = self._reading.get(part)
        if task is None or task.done():  # else one that hangs would take a thread more at each look
            task = self._reading[part] = asyncio.create_task(asyncio.to_thread(read))
        try:
            await asyncio.wait_for(asyncio.shield(task), WAIT_SECONDS)
            self.problems.pop(part, None)
        except TimeoutError:
            self.problems[part] = f"no answer in {WAIT_SECONDS:.0f} s"
        except Exception as error:  # whatever ails the one, the page shows the rest
            self.problems[part] = f"{error}"

    def _versions(self) -> None:
        self.look = self.registry.last_look()
        self.versions = self.registry.versions()[::-1][:MOST_VERSIONS]

    def _cycles(self) -> None:
        self.cycles = self.trained.last(MOST_CYCLES)
