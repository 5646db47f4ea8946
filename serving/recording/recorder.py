"""The recorder of events: it cuts and redacts them and writes them to the spool before the response ends."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from functools import cache

from infra.model.past_acceptance import PastAcceptance
from infra.records import Completion, Feedback, ShadowCopy
from infra.redaction.events import without_text
from infra.redaction.texts import Texts
from infra.storage.events import tombstones
from serving.metrics import Metrics
from serving.recording.answers import Answers
from serving.recording.event_redactor import EventRedactor
from serving.recording.long_texts import TooManyTexts
from serving.recording.opt_outs import OptOuts
from serving.recording.received import ReceivedEvents
from serving.recording.served import Served
from serving.recording.spool import Spool, SpoolFull
from serving.recording.traces import CompletionTraces

log = logging.getLogger(__name__)
JOIN_SECONDS = 600.0
"""As `collect.join_seconds` has it by default."""


class Recorder:
    """Writes events to the spool, also when their request is cancelled."""

    def __init__(
        self,
        spool: Spool,
        metrics: Metrics,
        redactor: EventRedactor,
        opt_outs: OptOuts,
        join_seconds: float = JOIN_SECONDS,
        traces: CompletionTraces | None = None,
    ) -> None:
        """Make a recorder; `join_seconds` is the settings' `collect.join_seconds`. Without `traces`, no request is traced."""
        self.traces = traces
        self.spool = spool
        self.opt_outs = opt_outs
        self.served = Served()
        self.received = ReceivedEvents()
        self.acceptance = PastAcceptance()
        self.answers = Answers(self.served, self.acceptance, join_seconds)
        self.metrics = metrics
        self._redactor = redactor
        self._writing: set[asyncio.Task[None]] = set()
        self._ahead: deque[Texts] = deque()

    async def record_completion(self, row: Completion) -> None:
        """Write a completion to the spool's file, even if the caller is cancelled meanwhile.

        It is on the disk before any later feedback is acknowledged. If the spool refuses it, it is lost, counted and logged.
        """
        self.metrics.completed(row)
        self.answers.ended(self.served.ended(row))
        if row.opted_out:
            self._write(without_text(row))
        elif (redacted := self._redactor.redact(row)) is not None:
            self._write(redacted)
        else:
            task = asyncio.create_task(self._write_long(row))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
            await asyncio.shield(task)

    def record_copy(self, row: ShadowCopy) -> None:
        """Write a copy's event to the spool's file. One that the spool refuses is lost, and logged."""
        try:
            self.spool.write(row).add_done_callback(lambda on_disk: on_disk.exception())  # asyncio then does not log it
        except (SpoolFull, OSError) as error:
            log.warning("copy %s is not recorded: %s", row.id, error)

    def scan_ahead(self, prefix: str, suffix: str, language: str = "") -> None:
        """Scan the code around a cursor for secrets while the engine works, so that `record_completion` finds them cached.

        Each iteration of the event loop scans one text, so that other requests never wait for a burst of them. Long text is
        scanned by `record_completion`, in another process.
        """
        if texts := self._redactor.short_texts(prefix, suffix, language):
            self._ahead.append(texts)
            if len(self._ahead) == 1:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def record_feedback(self, row: Feedback, *, opted_out: bool = False) -> bool:
        """Write feedback to the disk, and with it every completion recorded before; return whether it was written with its text.

        It has no text if its user opted out, by this event or by an earlier one of the same request.

        Raises:
            SpoolFull: the spool has reached its limit.
            OSError: the event cannot be written, or too many long texts of its credential wait (TooManyTexts).
        """
        held = self.opt_outs.hold(row, opted_out=opted_out)
        written = without_text(row) if held else self._redactor.redact(row)
        await self.spool.append(written if written is not None else await self._redactor.redact_long(row))
        if not held:
            self.answers.add(row)
        self.metrics.feedback_received(row)
        return not held

    def forget(self, names: Collection[str]) -> None:
        """Remember no request of users and projects that were forgotten, by the names of their records."""

        @cache
        def is_gone(user: str) -> bool:
            return tombstones.digest("user", user) in names

        self.served.forget(lambda user, project: is_gone(user) or tombstones.digest("project", project) in names)
        self.received.forget(is_gone)

    def forget_user(self, user: str) -> None:
        """Remember no request and no event of a user any more."""
        self.served.forget(lambda each, _: each == user)
        self.received.forget(lambda each: each == user)

    async def settle(self) -> None:
        """Wait for the completions that another process redacts, and end that process."""
        while self._writing:
            await asyncio.wait(self._writing)
        await self._redactor.long_texts.close()

    def _scan_next(self) -> None:
        """Scan the first waiting text, and schedule the next after the event loop's other callbacks."""
        try:
            self._redactor.redactor.look_ahead(self._ahead[0])
        finally:
            self._ahead.popleft()
            if self._ahead:
                asyncio.get_running_loop().call_soon(self._scan_next)

    async def _write_long(self, row: Completion) -> None:
        try:
            redacted = await self._redactor.redact_long(row)
        except TooManyTexts as error:
            self.metrics.texts_dropped.inc()
            log.warning("completion %s is recorded without its text, in the bucket `secret`: %s", row.id, error)
            self._write(without_text(row).model_copy(update={"redacted": True}))
        except OSError as error:
            self._lost(row, error)
        else:
            self._write(redacted)

    def _write(self, row: Completion) -> None:
        self.metrics.redacted.inc(row.redacted)
        self.served.recorded(row)

        def synced(on_disk: asyncio.Future[None]) -> None:
            if error := on_disk.exception():
                self._lost(row, error)

        try:
            self.spool.write(row).add_done_callback(synced)
        except (SpoolFull, OSError) as error:
            self._lost(row, error)

    def _lost(self, row: Completion, error: BaseException) -> None:
        self.metrics.unrecorded.inc()
        log.error("completion %s is not recorded: %s", row.id, error)
