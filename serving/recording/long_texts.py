"""Redaction of long texts in processes of their own, so that no other request waits for them.

Texts wait in a queue by credential (serving/recording/turns.py). Credentials with a costly text, such as one made up of secrets,
share a separate process, so that nobody else waits for these texts.
"""

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from infra.redaction.texts import Texts
from infra.redaction.worker import LENGTH, frame, read_answer
from infra.settings import ROOT
from serving.recording.turns import Turns, Waiting

SECONDS = 10.0
"""Most seconds for one event's texts, which take milliseconds; a process that takes longer is ended."""
MOST_WAITING = 64
"""Texts of one credential that may wait."""


class RedactionFailed(OSError):
    """The process ended, or took too long, twice."""


class TooManyTexts(OSError):
    """The maximum number of the credential's texts already waits."""


@dataclass(frozen=True, eq=False)
class _Job:
    texts: Texts
    result: asyncio.Future[Texts]
    before: float
    """CPU seconds used by the lane's texts when this one was queued."""


class _Lane:
    """A process, started before its first use and again after its end."""

    def __init__(self, personal: Mapping[str, Any] | None) -> None:
        self._personal = personal
        self.process: Process | None = None
        self.serving: asyncio.Task[None] | None = None
        self.cpu = 0.0
        """CPU seconds of its texts so far."""

    async def run(self, texts: Texts) -> tuple[Texts, float]:
        """Return the texts without secrets, and their CPU seconds. Raises RedactionFailed."""
        for _ in range(2):
            process = await self.running()
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                return await asyncio.wait_for(_exchange(process, texts), SECONDS)
            await self.end()
        raise RedactionFailed(f"redaction of {texts.characters} characters failed twice")

    async def running(self) -> Process:
        if self.process is None or self.process.returncode is not None:
            command = (sys.executable, "-m", "infra.redaction.worker")
            self.process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
            assert self.process.stdin
            self.process.stdin.write(frame(self._personal))
        return self.process

    async def end(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class LongTexts:
    """The texts that wait, and the processes: one for costly credentials, one for all others."""

    def __init__(
        self,
        personal: Mapping[str, Any] | None = None,
        waited: Callable[[str, float], None] = lambda who, seconds: None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Create the lanes; `waited` is called when a text's turn comes, with its credential and the CPU seconds of the texts
        that it waited for.
        """
        self._waited = waited
        self._turns: Turns[_Job] = Turns(most_waiting)
        self.lanes = {costly: _Lane(personal) for costly in (False, True)}

    async def start(self) -> None:
        """Start the main process if it does not run."""
        await self.lanes[False].running()

    async def redact(self, texts: Texts, who: str = "") -> Texts:
        """Return the texts of an event of this credential without secrets (Redactor.redact).

        Raises RedactionFailed or TooManyTexts.
        """
        costly = self._turns.is_costly(who, time.monotonic())
        job = _Job(texts, asyncio.get_running_loop().create_future(), self.lanes[costly].cpu)
        if not self._turns.add(who, texts.characters, job):
            raise TooManyTexts(
                f"{self._turns.most} long texts of one credential wait to be searched for secrets; send fewer at once"
            )
        self._serve_all()
        return await job.result

    async def close(self) -> None:
        """End the processes, after the texts that wait."""
        while tasks := [lane.serving for lane in self.lanes.values() if lane.serving and not lane.serving.done()]:
            await asyncio.wait(tasks)
        for lane in self.lanes.values():
            await lane.end()

    def _serve_all(self) -> None:
        for costly, lane in self.lanes.items():
            if lane.serving is None or lane.serving.done():
                lane.serving = asyncio.create_task(self._serve(lane, costly))

    async def _serve(self, lane: _Lane, costly: bool) -> None:
        """Redact the texts of a lane in turn, until none waits. The task outlives a request that is cancelled meanwhile."""
        while waiting := self._turns.take(time.monotonic(), costly=costly):
            if not waiting.job.result.done():
                await self._redact(lane, waiting)
            if not costly:
                self._serve_all()  # the credential may be costly now, so its other texts belong to the other lane

    async def _redact(self, lane: _Lane, waiting: Waiting[_Job]) -> None:
        job = waiting.job
        self._waited(waiting.who, max(0.0, lane.cpu - job.before))
        try:
            redacted, seconds = await lane.run(job.texts)
        except OSError as error:
            if not job.result.done():
                job.result.set_exception(error)
            return
        lane.cpu += seconds
        self._turns.used(waiting.who, seconds, time.monotonic())
        if not job.result.done():
            job.result.set_result(redacted)


async def _exchange(process: Process, texts: Texts) -> tuple[Texts, float]:
    assert process.stdin and process.stdout
    process.stdin.write(frame(asdict(texts)))
    await process.stdin.drain()
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return read_answer(await process.stdout.readexactly(length))
