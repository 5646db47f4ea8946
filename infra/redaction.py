"""Secrets in code, found before anything of them reaches the disk.

The detectors are detect-secrets' own (providers' keys, private keys, passwords by name, strings of high entropy), all but the one
for IP addresses, which are no secret. A line is looked at once: while a developer types, the others stay. The cursor may stand
in the middle of a secret: what is around it is looked at as it stands in the file, too.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.keyword import KeywordDetector

from infra.records import Completion, Feedback

REDACTED = "[redacted]"
NO_SECRET = "Public IP (ipv4)"
LINES_REMEMBERED = 50_000
LONGEST_REMEMBERED = 200
"""Longer lines are looked at each time: what is remembered stays within 50 MB, whatever is sent."""
LONGEST_LINE = 2_000
"""Longer lines are no code that a person wrote: they are redacted whole where anything is found in a part of them."""
AROUND = r"[^\s\"'`,;=()\[\]{}<>]*"
WORTH_A_LOOK = re.compile(
    r"[A-Za-z0-9+/_\-]{16}|[\"'][0-9a-fA-F]{9}|AP[0-9A-F][A-Za-z0-9]{8}|AKC[A-Za-z0-9]{10}|://|(?i:xox[a-z]-|pass|pwd|secret|key|auth|contrase)"
)
"""What every secret holds that a detector finds; most lines of code hold none of it and are spared the detectors."""
KEYWORD = re.compile(r"(?i:pass|pwd|secret|key|contrase)")
"""What every word holds that the detector of passwords by name looks for."""
KEY_BEGIN, KEY_END = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), re.compile(r"-----END [A-Z ]*PRIVATE KEY")
IN_BOTH = "PRIVATE KEY"
"""Of either end of a key; most texts hold none, and are spared the search for ends."""
KEY_LINE = re.compile(r"\s*[\"']?[A-Za-z0-9+/]{60,}={0,2}(\\n)?[\"']?\s*")
"""A line of nothing but base64: the middle of a key, whose first line may lie outside of what was sent."""
TRACES: dict[str, Any] = {"prompt_token_ids": (), "token_ids": (), "logprobs": (), "token_ends": ()}
"""Fields that hold the text once more."""
COMPLETION_TEXTS = ("prefix", "text", "suffix")
FEEDBACK_TEXTS = ("prefix", "shown", "suffix", "retained")
Span = tuple[int, int]
"""Begin and end of what is secret in a text."""


def _secrets(detector: Any, line: str) -> Iterator[str]:
    """What a detector finds in a line."""
    if isinstance(detector, KeywordDetector) and not KEYWORD.search(line):
        return  # as it would find out itself, for half of all the detectors' time
    for secret in detector.analyze_line(filename="code.py", line=line, line_number=1):
        if secret.secret_value:
            yield secret.secret_value
            continue
        # Of a pattern with a group it names the group alone, which may be empty.
        yield from (match.group() for pattern in detector.denylist for match in pattern.finditer(line))


class Redactor:
    """Takes secrets out of events."""

    def __init__(self) -> None:
        classes: dict[str, Any] = get_mapping_from_secret_type_to_class()
        self._detectors = [made() for kind, made in sorted(classes.items()) if kind != NO_SECRET]
        self._remembered = lru_cache(LINES_REMEMBERED)(self._look)

    def text(self, text: str) -> str:
        """The text with what is secret in it replaced by REDACTED; the same text where nothing is."""
        return self.around(text, "", "")[0]

    def around(self, prefix: str, middle: str, suffix: str) -> tuple[str, str, str]:
        """What stands around a cursor and at it, without what is secret in one of them, in all of them, or without the middle."""
        found = [list(self._spans(text)) for text in (prefix, middle, suffix)]
        # Of lines elsewhere nothing new is seen by joining them; of the ends of a key there is.
        begin, end = prefix.rfind("\n") + 1, suffix.find("\n")
        tail, head = prefix[begin:], suffix if end < 0 else suffix[:end]
        if any(IN_BOTH in text for text in (prefix, suffix, tail + middle + head, tail + head)):
            begin, tail, head = 0, prefix, suffix
        for texts in ({0: tail, 1: middle, 2: head}, {0: tail, 2: head}):
            for first, last in self._spans("".join(texts.values())):
                at = 0
                for place, text in texts.items():
                    low, high = max(first - at, 0), min(last - at, len(text))
                    if low < high:
                        shift = begin if place == 0 else 0
                        found[place].append((low + shift, high + shift))
                    at += len(text)
        return _without(prefix, found[0]), _without(middle, found[1]), _without(suffix, found[2])

    def completion(self, row: Completion) -> Completion:
        """Without secrets, and then without tokens, which could be read back."""
        told = (row.prefix, row.text, row.suffix)
        if (kept := self.around(*told)) == told:
            return row
        return row.model_copy(update={**dict(zip(COMPLETION_TEXTS, kept, strict=True)), **TRACES, "redacted": True})

    def feedback(self, row: Feedback) -> Feedback:
        """Without secrets."""
        prefix, shown, suffix = self.around(row.prefix, row.shown, row.suffix)
        prefix, retained, suffix = self.around(prefix, row.retained, suffix) if row.retained else (prefix, "", suffix)
        texts = dict(zip(FEEDBACK_TEXTS, (prefix, shown, suffix, retained), strict=True))
        return row if all(getattr(row, name) == text for name, text in texts.items()) else row.model_copy(update=texts)

    def _spans(self, text: str) -> Iterator[Span]:
        """What is secret in a text, line by line."""
        lines = text.split("\n")
        found = list(map(self._remembered if max(map(len, lines)) <= LONGEST_REMEMBERED else self._line, lines))
        if IN_BOTH in text:
            for number in _key_lines(lines):
                found[number] = ((0, len(lines[number])),)
        if not any(found):
            return
        at = 0
        for line, spans in zip(lines, found, strict=True):
            yield from ((at + start, at + end) for start, end in spans)
            at += len(line) + 1

    def _line(self, line: str) -> tuple[Span, ...]:
        return self._look(line) if len(line) > LONGEST_REMEMBERED else self._remembered(line)

    def _look(self, line: str) -> tuple[Span, ...]:
        if not WORTH_A_LOOK.search(line):
            return ()
        whole = (0, len(line))
        if KEY_LINE.fullmatch(line):
            return (whole,)
        half = LONGEST_LINE // 2  # parts overlap by as much, so that a secret lies whole in one of them
        parts = [line[at : at + LONGEST_LINE] for at in range(0, max(len(line) - half, 1), half)]
        secrets = {secret for part in parts for detector in self._detectors for secret in _secrets(detector, part)}
        if secrets and len(parts) > 1:
            return (whole,)
        # Some detectors name only the first letters of what they found: what hangs together goes as a whole.
        return tuple(m.span() for secret in secrets for m in re.finditer(f"{AROUND}{re.escape(secret)}{AROUND}", line))


def _key_lines(lines: list[str]) -> Iterator[int]:
    """Numbers of the lines of private keys."""
    ends = [number for number, line in enumerate(lines) if KEY_END.search(line)]
    begins = [number for number, line in enumerate(lines) if KEY_BEGIN.search(line)]
    # Cut windows may hold only one end of a key.
    inside = bool(ends) and (not begins or ends[0] < begins[0])
    for number, line in enumerate(lines):
        inside = inside or bool(KEY_BEGIN.search(line))
        if inside:
            yield number
        if inside and KEY_END.search(line):
            inside = False


def _without(text: str, spans: list[Span]) -> str:
    """The text with each span, or several that meet, replaced by REDACTED."""
    kept: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if start > at or not kept:
            kept += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*kept, text[at:]])
