"""Where events go: spool first, then the answer."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from infra.records import Completion, Feedback
from infra.redaction import COMPLETION_TEXTS, FEEDBACK_TEXTS, TRACES, Redactor
from serving.metrics import Metrics
from serving.spool import Spool, SpoolFull

log = logging.getLogger(__name__)
MUCH_TEXT = 4_000
"""Characters that take longer to look through than other requests should wait: half a millisecond of code, a tenth of a second of
text that is made to look like secrets."""
OPTED_OUT = TRACES | dict.fromkeys((*COMPLETION_TEXTS, "language"), "")
"""What is not kept of who opted out."""


class Recorder:
    """Writes events so that no cancelled request loses one."""

    def __init__(self, spool: Spool, metrics: Metrics, redactor: Redactor) -> None:
        self.spool = spool
        self._metrics = metrics
        self._redactor = redactor
        self._writing: set[asyncio.Task[None]] = set()
        self._ahead: deque[tuple[str, str]] = deque()

    async def completion(self, row: Completion) -> None:
        """In the spool's file when this comes back, even when the caller is cancelled meanwhile; on the disk before any feedback
        that comes later is acknowledged.

        A spool that refuses does not stop completions: the row is counted as lost, and said so.
        """
        self._metrics.completed(row)
        if row.opted_out:
            self._write(row.model_copy(update=OPTED_OUT))
        elif not _much(row, COMPLETION_TEXTS):
            self._write(self._redactor.completion(row))
        else:
            task = asyncio.create_task(self._much_text(row))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
            await asyncio.shield(task)

    def foresee(self, prefix: str, suffix: str) -> None:
        """Look through what stands around a cursor while the engine works: `completion` is soon done with remembered lines.

        Soon, and one after another, so that a request which comes meanwhile waits for one text and not for a burst's. Much text
        is left to `completion`, which takes it to a thread.
        """
        if len(prefix) + len(suffix) <= MUCH_TEXT:
            self._ahead.append((prefix, suffix))
            if len(self._ahead) == 1:
                asyncio.get_running_loop().call_soon(self._look_ahead)

    async def feedback(self, row: Feedback) -> None:
        """On the disk when this comes back, and every completion that was recorded before it. Raises SpoolFull or OSError."""
        redact = self._redactor.feedback
        await self.spool.append(await asyncio.to_thread(redact, row) if _much(row, FEEDBACK_TEXTS) else redact(row))
        self._metrics.judged(row)

    async def settle(self) -> None:
        """Wait for what is being written."""
        while self._writing:
            await asyncio.wait(self._writing)

    def _look_ahead(self) -> None:
        """At the first text that waits; what else the loop has to do comes before the next."""
        prefix, suffix = self._ahead[0]
        try:
            self._redactor.around(prefix, "", suffix)
        finally:
            self._ahead.popleft()
            if self._ahead:
                asyncio.get_running_loop().call_soon(self._look_ahead)

    async def _much_text(self, row: Completion) -> None:
        self._write(await asyncio.to_thread(self._redactor.completion, row))

    def _write(self, kept: Completion) -> None:
        self._metrics.redacted.inc(kept.redacted)

        def lost(error: BaseException) -> None:
            self._metrics.unrecorded.inc()
            log.error("completion %s is not recorded: %s", kept.id, error)

        def synced(on_disk: asyncio.Future[None]) -> None:
            if error := on_disk.exception():
                lost(error)

        try:
            self.spool.write(kept).add_done_callback(synced)
        except (SpoolFull, OSError) as error:
            lost(error)


def _much(row: Completion | Feedback, texts: Sequence[str]) -> bool:
    """Whether it is looked through in a thread."""
    return sum(len(getattr(row, name)) for name in texts) > MUCH_TEXT
