"""Remove secrets from code before it is written to disk.

The detectors are those of detect-secrets (providers' keys, private keys, passwords by name, high-entropy strings), except the
one for IP addresses, which are not secret. Results are cached by line, since most lines stay the same while a developer types.
The cursor may be in the middle of a secret, so the text around it is also scanned as one piece.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.keyword import KeywordDetector

from infra.records import Completion, Feedback

REDACTED = "[redacted]"
EXCLUDED_DETECTOR = "Public IP (ipv4)"
CACHED_LINES = 50_000
MAX_CACHED_LENGTH = 200
"""Maximum characters of a cached line, so that the cache stays within 50 MB."""
MAX_LINE_LENGTH = 2_000
"""A longer line is not handwritten code: if a part of it contains a secret, the whole line is redacted."""
TOKEN_PART = r"[^\s\"'`,;=()\[\]{}<>]*"
CANDIDATE = re.compile(
    r"[A-Za-z0-9+/_\-]{16}|[\"'][0-9a-fA-F]{9}|AP[0-9A-F][A-Za-z0-9]{8}|AKC[A-Za-z0-9]{10}|://|(?i:xox[a-z]-|pass|pwd|secret|key|auth|contrase)"
)
"""Matches in every line a detector can find a secret in; other lines, the great majority, skip the detectors."""
KEYWORD = re.compile(r"(?i:pass|pwd|secret|key|contrase)")
"""Matches in every line the detector of passwords by name can find a secret in."""
KEY_BEGIN, KEY_END = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), re.compile(r"-----END [A-Z ]*PRIVATE KEY")
KEY_MARK = "PRIVATE KEY"
"""Part of both markers; texts without it skip the search for private keys."""
KEY_LINE = re.compile(r"\s*[\"']?[A-Za-z0-9+/]{60,}={0,2}(\\n)?[\"']?\s*")
"""A line of base64: the middle of a key whose first line may be outside the text sent."""
EMPTY_TOKENS: dict[str, Any] = {"prompt_token_ids": (), "token_ids": (), "logprobs": (), "token_ends": ()}
"""Fields from which the text could be reconstructed, with their empty values."""
COMPLETION_TEXTS = ("prefix", "text", "suffix")
FEEDBACK_TEXTS = ("prefix", "shown", "suffix", "retained")
Span = tuple[int, int]
"""Start and end of a secret in a text, in characters."""


def _secrets(detector: Any, line: str) -> Iterator[str]:
    """Yield the secrets that a detector finds in a line."""
    if isinstance(detector, KeywordDetector) and not KEYWORD.search(line):
        return  # it would find nothing, in half of all the detectors' time
    for secret in detector.analyze_line(filename="code.py", line=line, line_number=1):
        if secret.secret_value:
            yield secret.secret_value
            continue
        # Of a pattern with a group, the detector returns only the group, which may be empty.
        yield from (match.group() for pattern in detector.denylist for match in pattern.finditer(line))


class Redactor:
    """Replaces secrets in events by "[redacted]"."""

    def __init__(self) -> None:
        classes: dict[str, Any] = get_mapping_from_secret_type_to_class()
        self._detectors = [detector() for kind, detector in sorted(classes.items()) if kind != EXCLUDED_DETECTOR]
        self._remembered = lru_cache(CACHED_LINES)(self._scan)

    def text(self, text: str) -> str:
        """Return the text with every secret replaced; without a secret, the same text."""
        return self.around(text, "", "")[0]

    def around(self, prefix: str, middle: str, suffix: str) -> tuple[str, str, str]:
        """Return prefix, middle and suffix without the secrets in each, in all three joined, or in prefix and suffix joined."""
        spans = [list(self._spans(text)) for text in (prefix, middle, suffix)]
        # Joining only affects the cursor's line, except for private keys, whose markers may be in different texts.
        begin, end = prefix.rfind("\n") + 1, suffix.find("\n")
        tail, head = prefix[begin:], suffix if end < 0 else suffix[:end]
        if any(KEY_MARK in text for text in (prefix, suffix, tail + middle + head, tail + head)):
            begin, tail, head = 0, prefix, suffix
        for texts in ({0: tail, 1: middle, 2: head}, {0: tail, 2: head}):
            for first, last in self._spans("".join(texts.values())):
                at = 0
                for place, text in texts.items():
                    low, high = max(first - at, 0), min(last - at, len(text))
                    if low < high:
                        shift = begin if place == 0 else 0
                        spans[place].append((low + shift, high + shift))
                    at += len(text)
        return _without(prefix, spans[0]), _without(middle, spans[1]), _without(suffix, spans[2])

    def completion(self, row: Completion) -> Completion:
        """Return the completion without secrets; if there are any, also without tokens, from which they could be read."""
        original = (row.prefix, row.text, row.suffix)
        if (texts := self.around(*original)) == original:
            return row
        return row.model_copy(update={**dict(zip(COMPLETION_TEXTS, texts, strict=True)), **EMPTY_TOKENS, "redacted": True})

    def feedback(self, row: Feedback) -> Feedback:
        """Return the event without secrets."""
        prefix, shown, suffix = self.around(row.prefix, row.shown, row.suffix)
        prefix, retained, suffix = self.around(prefix, row.retained, suffix) if row.retained else (prefix, "", suffix)
        texts = dict(zip(FEEDBACK_TEXTS, (prefix, shown, suffix, retained), strict=True))
        return row if all(getattr(row, name) == text for name, text in texts.items()) else row.model_copy(update=texts)

    def _spans(self, text: str) -> Iterator[Span]:
        """Yield the spans of secrets in a text, line by line."""
        lines = text.split("\n")
        by_line = list(map(self._remembered if max(map(len, lines)) <= MAX_CACHED_LENGTH else self._line, lines))
        if KEY_MARK in text:
            for number in _key_lines(lines):
                by_line[number] = ((0, len(lines[number])),)
        if not any(by_line):
            return
        at = 0
        for line, spans in zip(lines, by_line, strict=True):
            yield from ((at + start, at + end) for start, end in spans)
            at += len(line) + 1

    def _line(self, line: str) -> tuple[Span, ...]:
        return self._scan(line) if len(line) > MAX_CACHED_LENGTH else self._remembered(line)

    def _scan(self, line: str) -> tuple[Span, ...]:
        if not CANDIDATE.search(line):
            return ()
        whole = (0, len(line))
        if KEY_LINE.fullmatch(line):
            return (whole,)
        half = MAX_LINE_LENGTH // 2  # parts overlap by half, so that every secret is whole in one of them
        parts = [line[at : at + MAX_LINE_LENGTH] for at in range(0, max(len(line) - half, 1), half)]
        secrets = {secret for part in parts for detector in self._detectors for secret in _secrets(detector, part)}
        if secrets and len(parts) > 1:
            return (whole,)
        # Some detectors return only the first characters of a secret: extend each match to the whole token.
        return tuple(m.span() for secret in secrets for m in re.finditer(f"{TOKEN_PART}{re.escape(secret)}{TOKEN_PART}", line))


def _key_lines(lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the lines inside private keys."""
    ends = [number for number, line in enumerate(lines) if KEY_END.search(line)]
    begins = [number for number, line in enumerate(lines) if KEY_BEGIN.search(line)]
    # A cut text may hold only one end of a key.
    inside = bool(ends) and (not begins or ends[0] < begins[0])
    for number, line in enumerate(lines):
        inside = inside or bool(KEY_BEGIN.search(line))
        if inside:
            yield number
        if inside and KEY_END.search(line):
            inside = False


def _without(text: str, spans: list[Span]) -> str:
    """Return the text with each span, or each run of overlapping spans, replaced by REDACTED."""
    pieces: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if start > at or not pieces:
            pieces += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*pieces, text[at:]])
