"""The stream of a completion in OpenAI's form, line by line: of vLLM, TGI, SGLang, llama.cpp, Ollama, LM Studio and services."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from infra.model.fim.escapes import Escapes, Unescaping
from serving.engine.protocol import Delta, Finish

DATA, DONE, NOTHING, BOM = b"data:", b"[DONE]", b"null", b"\xef\xbb\xbf"
FAILURE_LINES = (b"error:", b"event: error", b"event:error")
FINISHES: Mapping[Finish, frozenset[str]] = {
    "stop": frozenset(
        {
            *("stop", "eos", "eos_token", "eosfound", "end_turn", "end_of_turn", "complete", "completed"),
            *("done", "stop_sequence", "stop_string", "stopstringfound", "stop_token", "word", "matched_stop"),
            *("repetition", "finish_reason_stop", "tool_calls", "tool_use", "toolcalls", "function_call"),
            *("load",),
        }
    ),
    "length": frozenset(
        {
            *("length", "limit", "max_tokens", "max_new_tokens", "max_length", "token_limit", "model_length"),
            *("time_limit", "maxpredictedtokensreached", "contextlengthreached"),
            *("model_context_window_exceeded", "finish_reason_max_tokens", "content_filter", "content_filtered"),
            *("guardrail_intervened", "safety", "recitation", "refusal"),
        }
    ),
    "abort": frozenset(
        {
            *("abort", "aborted", "cancel", "cancelled", "canceled", "timeout", "error", "failed"),
            *("insufficient_system_resource", "unload", "modelunloaded", "userstopped", "finish_reason_error"),
        }
    ),
}
"""Finish reasons in lower case. A completion that a filter cut short has no end of its own, as one at
its limit."""
NOT_FINISHED = ("", "null", "none", "not_finished", "finish_reason_unspecified")
"""Reasons that some services send in the middle of a stream."""
SHOWN_REASON = 40
"""Characters of an unknown reason."""


class CompletionStream:
    """Reads the lines of one stream."""

    def __init__(self, version: str, escapes: Escapes | None, unknown: Callable[[str], None]) -> None:
        """Take the version of the deltas.

        Args:
            escapes: those of the prompt's text; None: the server takes and returns token ids.
            unknown: called with a finish reason that is not known; it counts as an end.
        """
        self._version = version
        self._code = Unescaping(escapes) if escapes else None
        self._unknown = unknown
        self._half = ""
        """First half of a character whose second half is still to come: servers in JavaScript cut texts in UTF-16 units."""

    def delta(self, line: bytes) -> Delta | None:
        """Parse one line; None if it has no tokens. A field that is null is a field that is absent.

        Raises:
            ValueError, LookupError, TypeError or AttributeError: the line is malformed, or reports a failure.
        """
        if line.startswith(FAILURE_LINES):
            raise ValueError("an error in the stream")
        line = line.removeprefix(BOM)
        data = line.removeprefix(DATA).strip() if line.startswith(DATA) else b""
        if not data or data == NOTHING:
            return None
        if data.strip(b'"') == DONE:
            if self._code is None:
                raise ValueError("[DONE] before a finish_reason")
            return self._text("", "stop")  # some services send no finish_reason
        chunk = json.loads(data.decode(errors="replace"))
        _raise_failure(chunk)
        if not (choices := chunk.get("choices")):
            return None
        choice = choices[0]
        finish = self._finish(choice.get("finish_reason"))
        if self._code:
            # Some proxies answer as for a chat.
            return self._text(choice.get("text") or (choice.get("delta") or {}).get("content") or "", finish)
        return Delta(*_tokens(choice), self._version, finish)

    def _text(self, text: str, finish: Finish | None) -> Delta:
        """Return a delta of text; a marker that the server sends as its own token ends it."""
        assert self._code
        text = self._half + text
        self._half = text[-1:] if finish is None and "\ud800" <= text[-1:] <= "\udbff" else ""
        text = _sound(text[: len(text) - len(self._half)])
        code = self._code.feed(text)
        if self._code.ended:
            return Delta([], [], self._version, "stop", text=code)
        return Delta([], [], self._version, finish, text=code + self._code.flush() if finish else code)

    def _finish(self, reason: Any) -> Finish | None:
        """Return why a completion ended; None: it did not."""
        if isinstance(reason, Mapping):  # SGLang's own form
            reason = reason.get("type")
        name = str(reason or "").lower()
        if name in NOT_FINISHED:
            return None
        for finish, reasons in FINISHES.items():
            if name in reasons:
                return finish
        self._unknown(name[:SHOWN_REASON])
        return "stop"


def _sound(text: str) -> str:
    """Return a text whose halves of characters are joined; others become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _raise_failure(chunk: Mapping[str, Any]) -> None:
    """Raise ValueError if a chunk reports a failure, in one of the forms of OpenAI, vLLM, TGI and FastAPI."""
    kind, failure = chunk.get("object") or chunk.get("type"), chunk.get("error")
    if isinstance(failure, Mapping):  # fields that are null are absent
        failure = {name: value for name, value in failure.items() if value is not None}
    if failure or kind == "error" or (chunk.get("detail") and not chunk.get("choices")):
        raise ValueError("an error in the stream")


def _tokens(choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Return the token ids of a choice and their log-probabilities. Raises ValueError or LookupError if they do not fit."""
    token_ids = choice.get("token_ids") or []
    logprobs = ((choice.get("logprobs") or {}).get("token_logprobs") or []) if token_ids else []
    if len(logprobs) != len(token_ids):
        raise ValueError("the numbers of log-probabilities and token ids differ")
    if choice.get("text") and "token_ids" not in choice:
        raise LookupError("a text without token ids")
    return token_ids, logprobs
