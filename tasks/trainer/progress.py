"""The progress of an update, by the trainer's log."""

import re
from pathlib import Path

from tasks.trainer.run import LOG_NAME

STEP = re.compile(r"^step (\d+) of (\d+)\b", re.MULTILINE)
"""A step's line in the log."""


def steps_taken(work: Path) -> tuple[int, int] | None:
    """Return the steps that the newest update has taken, and all of its steps; None before its first.

    `work` is the folder of the updates' working files (train.folder).
    """
    logs = sorted(work.glob(f"*/{LOG_NAME}"), key=lambda log: log.stat().st_mtime)
    taken = STEP.findall(logs[-1].read_text(errors="replace")) if logs else []
    return (int(taken[-1][0]), int(taken[-1][1])) if taken else None
