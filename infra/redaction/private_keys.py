"""Private keys: blocks of lines between two markers; any part may lie outside the text."""

from bisect import bisect_right
from collections.abc import Iterator

from infra.redaction.patterns import Span, compile_bytes
from infra.redaction.randomness import looks_random

MARKS = ("PRIVATE KEY", "OpenVPN Static key", "PuTTY-User-Key-File", "Private-Lines", "Private-MAC")
"""One of these stands in every marker."""
MARK_BYTES = tuple(mark.encode() for mark in MARKS)
BEGIN = compile_bytes(r"-----BEGIN (?:[A-Z0-9 ]*PRIVATE KEY|OpenVPN Static key)|PuTTY-User-Key-File|Private-Lines:")
END = compile_bytes(r"-----END (?:[A-Z0-9 ]*PRIVATE KEY|OpenVPN Static key)|Private-MAC:")
BODY = compile_bytes(r"[A-Za-z0-9+/]{60,}={0,2}")
"""A line of base64: the middle of a key whose first line may be outside the text."""
AROUND_BODY = b" \t\r\"'+,\\"
"""Characters around it on its line if the key is a literal."""
MOST_AROUND = 40


def marked(text: str) -> bool:
    """Return whether a text has a marker of a private key."""
    return any(mark in text for mark in MARKS)


def spans(data: bytes) -> Iterator[Span]:
    """Yield the spans of private keys, in bytes."""
    for body in BODY.finditer(data):
        start, end = body.span()
        if not looks_random(body.group().decode("latin-1"), changes=0.2):
            continue
        line = max(data.rfind(b"\n", max(0, start - MOST_AROUND), start) + 1, start - MOST_AROUND, 0)
        newline = data.find(b"\n", end, end + MOST_AROUND)
        after = data[end : newline if newline >= 0 else end + MOST_AROUND].removeprefix(b"\\n")
        if not data[line:start].strip(AROUND_BODY) and not after.strip(AROUND_BODY):
            yield start, end
    yield from _blocks(data)


def _blocks(data: bytes) -> Iterator[Span]:
    """Yield the spans of marked keys: whole lines."""
    if not any(mark in data for mark in MARK_BYTES):
        return
    begins = [match.start() for match in BEGIN.finditer(data)]
    ends = [match.end() for match in END.finditer(data)]
    if ends and (not begins or ends[0] < begins[0]):
        begins.insert(0, 0)  # the text begins within a key
    done = 0
    for begin in begins:
        if begin < done:
            continue
        following = bisect_right(ends, begin)
        newline = data.find(b"\n", ends[following]) if following < len(ends) else -1
        start, done = data.rfind(b"\n", done, begin) + 1, len(data) if newline < 0 else newline
        yield start, done
