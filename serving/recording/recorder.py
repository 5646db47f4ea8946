"""The recorder of events: it cuts and redacts them and writes them to the spool before the response ends."""

import asyncio
import logging
from collections import deque

from infra.records import Completion, Feedback
from infra.redaction.events import texts_of, with_texts, without_text
from infra.redaction.redactor import Redactor
from infra.redaction.texts import Kept, Texts
from serving.metrics import Metrics
from serving.recording.long_texts import LongTexts
from serving.recording.spool import SpoolFull, Spool

log = logging.getLogger(__name__)
LONG_TEXT = 4_000
"""Characters of text above which redaction runs in another process: made-up secrets of this length take some milliseconds."""
LONG_LINE = 600
"""Likewise, characters of the line at the cursor, which is searched once more for each text that stood there."""


class Recorder:
    """Writes events to the spool, also when their request is cancelled."""

    def __init__(self, spool: Spool, metrics: Metrics, redactor: Redactor, long_texts: LongTexts, kept: Kept) -> None:
        self.spool = spool
        self._metrics = metrics
        self._redactor = redactor
        self._long_texts = long_texts
        self._kept = kept
        self._writing: set[asyncio.Task[None]] = set()
        self._ahead: deque[Texts] = deque()

    async def record_completion(self, row: Completion) -> None:
        """Write a completion to the spool's file, even if the caller is cancelled meanwhile.

        It is on the disk before any later feedback is acknowledged. If the spool refuses it, the loss is counted and logged.
        """
        self._metrics.completed(row)
        if row.opted_out:
            self._write(without_text(row))
            return
        kept = self._kept.cut(texts_of(row))
        if not _is_long(kept):
            self._write(with_texts(row, kept.within_margins(), self._redactor.redact(kept)))
            return
        task = asyncio.create_task(self._write_long(row, kept))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    def scan_ahead(self, prefix: str, suffix: str, language: str = "") -> None:
        """Scan the code around a cursor for secrets while the engine works, so that `record_completion` finds them cached.

        Each iteration of the event loop scans one text, so that other requests never wait for a burst of them. The other process
        scans long text.
        """
        texts = self._kept.cut(Texts(prefix, (), suffix, language))
        if not _is_long(texts):
            self._ahead.append(texts)
            if len(self._ahead) == 1:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def record_feedback(self, row: Feedback) -> None:
        """Write feedback to the disk, and with it every completion recorded before. Raises SpoolFull or OSError."""
        kept = self._kept.cut(texts_of(row))
        redacted = await self._long_texts.redact(kept) if _is_long(kept) else self._redactor.redact(kept)
        await self.spool.append(with_texts(row, kept.within_margins(), redacted))
        self._metrics.feedback_received(row)

    async def settle(self) -> None:
        """Wait for the completions that are being redacted in the other process, and end it."""
        while self._writing:
            await asyncio.wait(self._writing)
        await self._long_texts.close()

    def _scan_next(self) -> None:
        """Scan the first waiting text, and schedule the next after the event loop's other callbacks."""
        try:
            self._redactor.look_ahead(self._ahead[0])
        finally:
            self._ahead.popleft()
            if self._ahead:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def _write_long(self, row: Completion, kept: Texts) -> None:
        try:
            redacted = await self._long_texts.redact(kept)
        except OSError as error:
            self._lost(row, error)
        else:
            self._write(with_texts(row, kept.within_margins(), redacted))

    def _write(self, row: Completion) -> None:
        self._metrics.redacted.inc(row.redacted)

        def synced(on_disk: asyncio.Future[None]) -> None:
            if error := on_disk.exception():
                self._lost(row, error)

        try:
            self.spool.write(row).add_done_callback(synced)
        except (SpoolFull, OSError) as error:
            self._lost(row, error)

    def _lost(self, row: Completion, error: BaseException) -> None:
        self._metrics.unrecorded.inc()
        log.error("completion %s is not recorded: %s", row.id, error)


def _is_long(texts: Texts) -> bool:
    """Return whether redaction may take so long that other requests would wait."""
    return texts.characters > LONG_TEXT or texts.cursor_line > LONG_LINE
