"""What the status page shows of the registry: the gate's last look at a test, and the newest versions with their verdicts."""

import asyncio
import time
from dataclasses import dataclass, field

from infra.records import Decision
from infra.registry import ModelVersion, Registry

BOARD_SECONDS = 5.0
MOST_VERSIONS = 12


@dataclass(frozen=True)
class Links:
    """Where the page points to."""

    mlflow: str
    prefect: str
    model: str
    """Name of the registered model."""


@dataclass
class Board:
    """What the registry says of tests and versions, asked for at most every few seconds and kept when it is away."""

    registry: Registry
    look: Decision | None = None
    versions: list[ModelVersion] = field(default_factory=list)
    problem: str = ""
    _asked: float = -BOARD_SECONDS

    async def refresh(self) -> None:
        """Read it again where it is old; what cannot be read is said."""
        now = time.monotonic()
        if now - self._asked < BOARD_SECONDS:
            return
        self._asked = now
        try:
            self.look = await asyncio.to_thread(self.registry.last_look)
            self.versions = (await asyncio.to_thread(self.registry.versions))[::-1][:MOST_VERSIONS]
            self.problem = ""
        except Exception as error:  # whatever ails the registry, the page shows the rest
            self.problem = f"{error}"
