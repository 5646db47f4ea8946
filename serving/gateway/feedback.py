"""Feedback routes of every dialect. An event is on the disk before its response."""

import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from infra.records import Feedback
from infra.telemetry.spans import REQUEST
from serving.access import Access, Caller
from serving.access.callers import Named
from serving.gateway.browsers import require_json
from serving.gateway.dialects import DIALECTS, client_name
from serving.gateway.dialects.base import Dialect, FeedbackEvent, FeedbackFormat, Received
from serving.gateway.errors import FeedbackNotStored
from serving.gateway.openapi import DocumentedApp, Post, answers
from serving.gateway.requests import read_json
from serving.recording.recorder import Recorder
from serving.recording.served import ServedRequest
from serving.recording.spool import SpoolFull

MAX_REMEMBERED = 20_000
"""Events of a route that are recorded once."""
CLOCK_SECONDS = 3_600.0
"""Seconds by which a client's clock may be ahead; a completion that was made later than that was made at no known time."""


@dataclass(frozen=True)
class FeedbackService:
    """Writes feedback events."""

    access: Access
    recorder: Recorder
    clock: Callable[[], float] = time.time
    """Unix seconds."""

    @property
    def waiting_segments(self) -> int:
        """Segments in the spool, as last measured."""
        return self.recorder.spool.segments

    def named(self, event: FeedbackEvent, named: Named) -> Named:
        """Return the user and project of an event: what the request names, else those of its completion. Raises Denied."""
        return self.recorder.served.named(named, event.completion_id, event.prefix, event.suffix)

    def completion(self, event: FeedbackEvent, caller: Caller) -> ServedRequest | None:
        """Return the one of the caller's latest completions that an event is about; None if this replica knows none."""
        served, who = self.recorder.served, (caller.project, caller.user)
        if event.completion_id:
            return served.of(*who, event.completion_id)
        return served.at_place(*who, event.prefix, event.suffix, event.shown)

    async def store(self, event: FeedbackEvent, caller: Caller, about: ServedRequest | None = None) -> str:
        """Write an event about a completion to the disk and return its id. Raises FeedbackNotStored."""
        fields, now = vars(event).copy(), self.clock()
        odd = set(fields.pop("odd"))
        if event.made_at is not None and not 0 < event.made_at < now + CLOCK_SECONDS:
            fields["made_at"] = None
            odd.add("made_at")
        row = Feedback(
            id=f"fb-{uuid.uuid4()}",
            time=now,
            project=caller.project,
            user=caller.user,
            credential=caller.credential,
            client=caller.client,
            **fields,
        )
        try:
            whole = await self.recorder.record_feedback(row, opted_out=caller.opted_out)
        except (SpoolFull, OSError) as error:
            raise FeedbackNotStored(str(error)) from error
        self.recorder.metrics.odd_fields_received(row.client, odd)
        if self.recorder.traces and whole:
            self.recorder.traces.judged(about.id if about else row.completion_id, row, self.clock())
        return row.id


def add_feedback(app: DocumentedApp, service: FeedbackService) -> None:
    """Add the feedback routes of all dialects; both ports have them, since Tabby's agent sends everything to one address."""
    for dialect in DIALECTS:
        for form in dialect.feedback:
            app.add_route(form.path, _endpoint(service, dialect, form), methods=["POST"])
            app.posts[form.path] = Post(form.schema, answers(form.answer))


def _endpoint(service: FeedbackService, dialect: Dialect, form: FeedbackFormat) -> Callable[[Request], Awaitable[Response]]:
    recent = OrderedDict[tuple[str, ...], None]()

    async def receive(request: Request) -> Response:
        credential = await service.access.check(request.headers, "feedback")
        require_json(request)
        body = await read_json(request)
        event = form.parse(body, request.query_params)
        record_id, matched = "", False
        if event is not None:
            client = dialect.name or client_name(request.headers)
            caller = service.access.caller(request.headers, credential, body.get("user"), client, partial(service.named, event))
            about = service.completion(event, caller)
            matched = about is not None
            REQUEST.set(about.id if about else "")
            service.recorder.received.add(caller.user, caller.client, service.clock(), matched=matched)
            key = (caller.project, caller.user, event.client_id, event.outcome)
            if not (form.once and key in recent):
                record_id = await service.store(event, caller, about)
                if form.once:
                    recent[key] = None
                    if len(recent) > MAX_REMEMBERED:
                        recent.popitem(last=False)
        return JSONResponse(form.render(Received(record_id, service.waiting_segments, matched)))

    return receive
