"""Redaction of long texts in a process of its own, so that no other request waits for them."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

from infra.redaction.texts import Texts
from infra.redaction.worker import LENGTH, frame, read_texts, texts_frame
from infra.settings import ROOT

SECONDS = 10.0
"""Most seconds for one event's texts, which take milliseconds; a process that takes longer is ended."""


class RedactionFailed(OSError):
    """The process ended, or took too long, twice."""


class LongTexts:
    """The process: started before its first use, and again after its end."""

    def __init__(self, personal: Mapping[str, Any] | None = None) -> None:
        """`personal`: arguments of PersonalData."""
        self._personal = personal
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process if it does not run."""
        async with self._turn:
            await self._running()

    async def redact(self, texts: Texts) -> Texts:
        """Return the texts without secrets (Redactor.redact). Raises RedactionFailed."""
        async with self._turn:
            for _ in range(2):
                process = await self._running()
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    return await asyncio.wait_for(_exchange(process, texts), SECONDS)
                await self._end()
        raise RedactionFailed(f"redaction of {texts.characters} characters failed twice")

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "infra.redaction.worker")
            self._process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
            assert self._process.stdin
            self._process.stdin.write(frame(self._personal))
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _exchange(process: Process, texts: Texts) -> Texts:
    assert process.stdin and process.stdout
    process.stdin.write(texts_frame(texts))
    await process.stdin.drain()
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return read_texts(await process.stdout.readexactly(length))
