"""The spans of a completion: request, rendering, queue, first token, stream, record, ship, and what became of it.

A trace's id follows from the completion's, so that a replica that receives the answer adds it to the trace of another. No span
holds code or a name: neither user, project, file nor text. Requests of users who opted out have none.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.model.verdicts import is_accepted, strength
from infra.records import Completion, Feedback
from infra.telemetry.spans import Span, Value
from serving.recording.spool import Event

if TYPE_CHECKING:
    from infra.telemetry.traces import Traces

OUTCOME = "gen_ai.evaluation.result"


@dataclass(frozen=True)
class Times:
    """Seconds from a request's arrival to the ends of its parts."""

    rendered: float
    """The prompt was rendered."""
    asked: float | None
    """The engine that answered was asked; none: no engine was."""
    first: float | None
    """The first token came; none before it."""
    ended: float
    """Sampling ended."""
    recording: tuple[float, float]
    """The record's writing began, and ended."""
    answered: float
    """The response was sent."""

    def parts(self) -> list[tuple[str, float, float]]:
        """Return the name, begin and end of each part."""
        found = [("rendering", 0.0, self.rendered)]
        if self.asked is not None:
            found += [("queue", self.rendered, self.asked), ("first token", self.asked, self.first or self.ended)]
        if self.first is not None:
            found.append(("stream", self.first, self.ended))
        return [*found, ("record", *self.recording)]


class CompletionTraces:
    """Sends the spans of the sampled completions."""

    def __init__(self, traces: "Traces", model: str, clients: Collection[str]) -> None:
        """Take the model's name for clients, and the clients that are named; others are "other"."""
        self._traces, self._model, self._clients = traces, model, clients

    def answered(self, row: Completion, times: Times) -> None:
        """Send the spans of a completion that was answered and recorded."""
        if row.opted_out or not self._traces.chosen(row.id):
            return
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": row.id,
            "gen_ai.response.model": row.policy_version,
            "gen_ai.response.finish_reasons": [row.finish_reason],
            "gen_ai.usage.input_tokens": len(row.prompt_token_ids),
            "gen_ai.usage.output_tokens": len(row.token_ids),
            "tabloop.arm": row.arm,
            "tabloop.client": row.client if row.client in self._clients else "other",
            "tabloop.withheld": row.withheld,
        }
        error = row.finish_reason if row.finish_reason == "error" else ""
        parts = [Span(name, row.time + began, row.time + ended) for name, began, ended in times.parts()]
        self._traces.send(row.id, parts, Span("request", row.time, row.time + times.answered, attributes, error))

    def failed(self, completion_id: str, began: float, ended: float, kind: str) -> None:
        """Send the span of a request that no engine answered; `kind` is the error's."""
        if self._traces.chosen(completion_id):
            attributes = {"gen_ai.request.model": self._model, "gen_ai.response.id": completion_id, "error.type": kind}
            self._traces.send(completion_id, (), Span("request", began, ended, attributes, kind))

    def shipped(self, events: Sequence[Event], began: float, ended: float) -> None:
        """Send a span for each sampled completion of a segment that was uploaded."""
        for event in events:
            if isinstance(event, Completion) and not event.opted_out and self._traces.chosen(event.id):
                self._traces.send(event.id, [Span("ship", began, ended)])

    def judged(self, completion_id: str, row: Feedback, ended: float) -> None:
        """Send what a developer did with a completion."""
        if not self._traces.chosen(completion_id) or not _is_own(completion_id):
            return
        accepted = is_accepted(strength(row.outcome, row.reason))
        attributes: dict[str, Value] = {
            "gen_ai.evaluation.name": "developer",
            "gen_ai.evaluation.score.label": row.outcome,
            "gen_ai.response.id": completion_id,
        }
        if accepted is not None:
            attributes["gen_ai.evaluation.score.value"] = float(accepted)
        if row.reason:
            attributes["gen_ai.evaluation.explanation"] = row.reason
        self._traces.send(completion_id, [Span(OUTCOME, row.time, ended, attributes)])


def _is_own(completion_id: str) -> bool:
    """Return whether the app makes such ids: a client can send any text as one."""
    try:
        return completion_id == f"cmpl-{uuid.UUID(completion_id[-36:])}"
    except ValueError:
        return False
