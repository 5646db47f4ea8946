"""The recorder of events: it redacts them and writes them to the spool before the response ends."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from infra.records import Completion, Feedback
from infra.redaction import COMPLETION_TEXTS, EMPTY_TOKENS, FEEDBACK_TEXTS, Redactor
from serving.metrics import Metrics
from serving.recording.spool import Spool, SpoolFull

log = logging.getLogger(__name__)
LONG_TEXT = 4_000
"""Characters of text above which redaction runs in a thread, so that other requests do not wait for it."""
OPTED_OUT = EMPTY_TOKENS | dict.fromkeys((*COMPLETION_TEXTS, "language", "file"), "")
"""Replacements for the fields that are not recorded for a user who opted out."""


class Recorder:
    """Writes events to the spool, also when their request is cancelled."""

    def __init__(self, spool: Spool, metrics: Metrics, redactor: Redactor) -> None:
        self.spool = spool
        self._metrics = metrics
        self._redactor = redactor
        self._writing: set[asyncio.Task[None]] = set()
        self._ahead: deque[tuple[str, str]] = deque()

    async def record_completion(self, row: Completion) -> None:
        """Write a completion to the spool's file, even if the caller is cancelled meanwhile.

        It is on the disk before any later feedback is acknowledged. If the spool refuses it, the loss is counted and logged.
        """
        self._metrics.completed(row)
        if row.opted_out:
            self._write(row.model_copy(update=OPTED_OUT))
        elif not _is_long(row, COMPLETION_TEXTS):
            self._write(self._redactor.completion(row))
        else:
            task = asyncio.create_task(self._redact_in_thread(row))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
            await asyncio.shield(task)

    def scan_ahead(self, prefix: str, suffix: str) -> None:
        """Scan the code around a cursor for secrets while the engine works, so that `record_completion` finds its lines cached.

        Each iteration of the event loop scans one text, so that other requests never wait for a burst of them.
        `record_completion` scans long text, in a thread.
        """
        if len(prefix) + len(suffix) <= LONG_TEXT:
            self._ahead.append((prefix, suffix))
            if len(self._ahead) == 1:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def record_feedback(self, row: Feedback) -> None:
        """Write feedback to the disk, and with it every completion recorded before. Raises SpoolFull or OSError."""
        redact = self._redactor.feedback
        await self.spool.append(await asyncio.to_thread(redact, row) if _is_long(row, FEEDBACK_TEXTS) else redact(row))
        self._metrics.feedback_received(row)

    async def settle(self) -> None:
        """Wait for the completions that are being redacted in a thread."""
        while self._writing:
            await asyncio.wait(self._writing)

    def _scan_next(self) -> None:
        """Scan the first waiting text, and schedule the next after the event loop's other callbacks."""
        prefix, suffix = self._ahead[0]
        try:
            self._redactor.around(prefix, "", suffix)
        finally:
            self._ahead.popleft()
            if self._ahead:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def _redact_in_thread(self, row: Completion) -> None:
        self._write(await asyncio.to_thread(self._redactor.completion, row))

    def _write(self, row: Completion) -> None:
        self._metrics.redacted.inc(row.redacted)

        def lost(error: BaseException) -> None:
            self._metrics.unrecorded.inc()
            log.error("completion %s is not recorded: %s", row.id, error)

        def synced(on_disk: asyncio.Future[None]) -> None:
            if error := on_disk.exception():
                lost(error)

        try:
            self.spool.write(row).add_done_callback(synced)
        except (SpoolFull, OSError) as error:
            lost(error)


def _is_long(row: Completion | Feedback, texts: Sequence[str]) -> bool:
    """Return whether redacting the row takes so long that it runs in a thread."""
    return sum(len(getattr(row, name)) for name in texts) > LONG_TEXT
