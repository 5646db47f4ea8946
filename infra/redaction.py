"""Secrets in code, found before anything of them reaches the disk.

The detectors are detect-secrets' own (providers' keys, private keys, passwords by name, strings of high entropy), all but the one
for IP addresses, which are no secret. A line is looked at once: while a developer types, the others stay.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

from infra.records import Completion, Feedback

REDACTED = "[redacted]"
NO_SECRET = "Public IP (ipv4)"
LINES_REMEMBERED = 50_000
LONGEST_LINE = 2_000
"""Longer lines are no code that a person wrote: they are redacted whole where anything is found in a part of them."""
AROUND = r"[^\s\"'`,;=()\[\]{}<>]*"
WORTH_A_LOOK = re.compile(
    r"[A-Za-z0-9+/_\-]{16}|[\"'][0-9a-fA-F]{9}|AP[0-9A-F][A-Za-z0-9]{8}|AKC[A-Za-z0-9]{10}|://|(?i:xox[a-z]-|pass|pwd|secret|key|auth|contrase)"
)
"""What every secret holds that a detector finds; most lines of code hold none of it and are spared the detectors."""
KEY_BEGIN, KEY_END = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), re.compile(r"-----END [A-Z ]*PRIVATE KEY")
IN_BOTH = "PRIVATE KEY"
"""Of either end of a key; most texts hold none, and are spared the search for ends."""
KEY_LINE = re.compile(r"\s*[\"']?[A-Za-z0-9+/]{60,}={0,2}(\\n)?[\"']?\s*")
"""A line of nothing but base64: the middle of a key, whose first line may lie outside of what was sent."""
TRACES: dict[str, Any] = {"prompt_token_ids": (), "token_ids": (), "logprobs": (), "token_ends": ()}
"""Fields that hold the text once more."""
FEEDBACK_TEXTS = ("prefix", "suffix", "shown", "retained")


def _secrets(detector: Any, line: str) -> Iterator[str]:
    """What a detector finds in a line."""
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
        self._line = lru_cache(LINES_REMEMBERED)(self._look)

    def text(self, text: str) -> str:
        """The text with what is secret in it replaced by REDACTED; the same text where nothing is."""
        lines = text.split("\n")
        found = list(self._lines(lines) if IN_BOTH in text else map(self._line, lines))
        return text if found == lines else "\n".join(found)

    def completion(self, row: Completion) -> Completion:
        """Without secrets, and then without tokens, which could be read back."""
        texts = {name: self.text(getattr(row, name)) for name in ("prefix", "suffix", "text")}
        if all(getattr(row, name) == text for name, text in texts.items()):
            return row
        return row.model_copy(update={**texts, **TRACES, "redacted": True})

    def feedback(self, row: Feedback) -> Feedback:
        """Without secrets."""
        texts = {name: self.text(getattr(row, name)) for name in FEEDBACK_TEXTS}
        return row if all(getattr(row, name) == text for name, text in texts.items()) else row.model_copy(update=texts)

    def _lines(self, lines: list[str]) -> Iterator[str]:
        ends = [number for number, line in enumerate(lines) if KEY_END.search(line)]
        begins = [number for number, line in enumerate(lines) if KEY_BEGIN.search(line)]
        # Cut windows may hold only one end of a key.
        inside = bool(ends) and (not begins or ends[0] < begins[0])
        for line in lines:
            inside = inside or bool(KEY_BEGIN.search(line))
            yield REDACTED if inside else self._line(line)
            if inside and KEY_END.search(line):
                inside = False

    def _look(self, line: str) -> str:
        if not WORTH_A_LOOK.search(line):
            return line
        if KEY_LINE.fullmatch(line):
            return REDACTED
        half = LONGEST_LINE // 2  # parts overlap by as much, so that a secret lies whole in one of them
        parts = [line[at : at + LONGEST_LINE] for at in range(0, max(len(line) - half, 1), half)]
        secrets = {secret for part in parts for detector in self._detectors for secret in _secrets(detector, part)}
        if secrets and len(parts) > 1:
            return REDACTED
        for secret in sorted(secrets, key=len, reverse=True):
            # Some detectors name only the first letters of what they found: what hangs together goes as a whole.
            line = re.sub(f"{AROUND}{re.escape(secret)}{AROUND}", REDACTED, line)
        return line
