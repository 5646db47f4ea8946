"""Where events go: spool first, then the answer."""

import asyncio
import logging

from infra.records import Completion, Feedback
from serving.metrics import Metrics
from serving.spool import Spool, SpoolFull

log = logging.getLogger(__name__)
TRACES = {"prefix": "", "suffix": "", "prompt_token_ids": (), "token_ids": (), "logprobs": (), "token_ends": (), "text": ""}


class Recorder:
    """Writes events so that no cancelled request loses one."""

    def __init__(self, spool: Spool, metrics: Metrics) -> None:
        self.spool = spool
        self._metrics = metrics
        self._writing: set[asyncio.Task[None]] = set()

    async def completion(self, row: Completion) -> None:
        """Durable when this comes back, even when the caller is cancelled meanwhile.

        A spool that refuses does not stop completions: the row is counted as lost, and said so.
        """
        self._metrics.completed(row)
        task = asyncio.create_task(self._completion(row.model_copy(update=TRACES) if row.opted_out else row))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def feedback(self, row: Feedback) -> None:
        """Durable when this comes back. Raises SpoolFull or OSError."""
        await self.spool.append(row)
        self._metrics.judged(row)

    async def settle(self) -> None:
        """Wait for what is being written."""
        while self._writing:
            await asyncio.wait(self._writing)

    async def _completion(self, row: Completion) -> None:
        try:
            await self.spool.append(row)
        except (SpoolFull, OSError) as error:
            self._metrics.unrecorded.inc()
            log.error("completion %s is not recorded: %s", row.id, error)
