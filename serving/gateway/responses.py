"""Sends a generation to the client, and stops it when the client leaves."""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from infra.records import Completion
from serving.gateway.dialects.base import Events, Render
from serving.gateway.errors import BROKEN_OFF
from serving.gateway.generation import Generation, Unavailable, Unservable
from serving.recording.recorder import Recorder

Answered = Callable[[Generation], None]
"""Called with a generation once its whole response was sent."""


class CompletionResponse(Response, ABC):
    """Runs a generation while it watches the connection; when the client leaves, the generation ends."""

    def __init__(self, generation: Generation, recorder: Recorder, answered: Answered) -> None:
        # Not Starlette's own, which encodes headers and a body that nobody sends.
        self.generation = generation
        self._recorder = recorder
        self._answered = answered
        self._looked_ahead = False
        self._recorded: tuple[Completion, tuple[float, float]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, answering = asyncio.current_task(), True
        assert work is not None

        def stop(left: asyncio.Task[None]) -> None:
            if answering and not left.cancelled():
                work.cancel()

        left = asyncio.create_task(_disconnected(receive))
        left.add_done_callback(stop)
        try:
            await self._work(send)
        except asyncio.CancelledError:
            if not left.done() or work.uncancel():  # by others than `stop`
                raise
        finally:
            answering = False
            left.cancel()

    async def _work(self, send: Send) -> None:
        try:
            await self.generate(send)
        except asyncio.CancelledError:
            self.generation.finish = "disconnected"
            await self.record()
            self._trace()
            raise
        except (Unavailable, Unservable) as error:
            self._trace_failure(error)
            raise
        await self.end(send)
        self._trace()
        self._answered(self.generation)

    def look_ahead(self) -> None:
        """Search the code around the cursor for secrets, once; called after the first text, so that it delays no first text."""
        if not self._looked_ahead and not self.generation.caller.opted_out:
            self._looked_ahead = True
            request = self.generation.request
            self._recorder.scan_ahead(request.prefix, request.suffix, request.language)

    async def record(self) -> None:
        """Write the completion's event; the response ends after that."""
        if row := self.generation.record():
            began = time.perf_counter()
            await self._recorder.record_completion(row)
            self._recorded = row, (began, time.perf_counter())

    def _trace(self) -> None:
        if self._recorder.traces and self._recorded:
            row, recording = self._recorded
            self._recorder.traces.answered(row, self.generation.times(recording, time.perf_counter()))

    def _trace_failure(self, error: Exception) -> None:
        generation = self.generation
        if self._recorder.traces and not generation.caller.opted_out:
            ended = generation.arrived + time.perf_counter() - generation.started
            self._recorder.traces.failed(generation.id, generation.arrived, ended, type(error).__name__)

    @abstractmethod
    async def generate(self, send: Send) -> None:
        """Sample, and send the text that is ready. Raises Unavailable or Unservable before anything is sent."""

    @abstractmethod
    async def end(self, send: Send) -> None:
        """Record, then send the rest. Raises Unavailable if nothing was sent and there is no text."""


class WholeResponse(CompletionResponse):
    """One JSON body at the end."""

    def __init__(self, generation: Generation, recorder: Recorder, answered: Answered, render: Render) -> None:
        super().__init__(generation, recorder, answered)
        self._render = render

    async def generate(self, send: Send) -> None:
        async with aclosing(self.generation.texts()) as texts:
            async for _ in texts:
                self.look_ahead()

    async def end(self, send: Send) -> None:
        await self.record()
        if self.generation.finish == "error" and not self.generation.text:
            raise Unavailable(BROKEN_OFF)
        await _send_json(send, 200, self._render(self.generation), *version_headers(self.generation))


class StreamedResponse(CompletionResponse):
    """Server-sent events, token by token. The connection is closed at the end, since Continue does not stop at [DONE]."""

    def __init__(self, generation: Generation, recorder: Recorder, answered: Answered, events: Events) -> None:
        super().__init__(generation, recorder, answered)
        self._started = False
        self._events = events
        self._rest = ""
        """Holds the last text, which is sent with the end: a separate write would wake the client while the record is written."""

    async def generate(self, send: Send) -> None:
        async with aclosing(self.generation.texts()) as texts:
            async for text in texts:
                if self._started and self.generation.finished:
                    self._rest += text
                    continue
                await self._start(send)
                await send({"type": "http.response.body", "body": self._events.text(text), "more_body": True})
                self.look_ahead()

    async def end(self, send: Send) -> None:
        await self.record()  # before anything is sent, which may wait for the client
        broken_off = self.generation.finish == "error"
        if broken_off and not self._started:
            raise Unavailable(BROKEN_OFF)
        await self._start(send)
        rest = self._events.text(self._rest) if self._rest else b""
        last = self._events.broken_off() if broken_off else self._events.last()
        await send({"type": "http.response.body", "body": rest + last})

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),  # nginx would hold the tokens back until the end
                (b"connection", b"close"),
                *version_headers(self.generation),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})


def version_headers(generation: Generation) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header with the policy version that serves the completion, for a caller who may see it.

    It is hidden from others: a developer who knows the version could decide its A/B test by accepting more of it.
    """
    return ((b"x-tabloop-version", generation.version.encode()),) if generation.caller.sees_versions else ()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_json(send: Send, status: int, body: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()  # llama.vim ignores a response with a space after "content":
    length = (b"content-length", str(len(content)).encode())
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": content})
