"""What the completions app stands on, made once by __main__.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from serving.access import Access
from serving.arms import Arms
from serving.board import Board, Links
from serving.generation import Policy
from serving.metrics import Metrics
from serving.recording import Recorder
from serving.shipping import Shipper


@dataclass(frozen=True)
class Serving:
    """All that the apps stand on."""

    model: str
    access: Access
    arms: Arms
    policy: Policy
    recorder: Recorder
    metrics: Metrics
    shipper: Shipper
    board: Board
    links: Links
    clock: Callable[[], float] = time.time
