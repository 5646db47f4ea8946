"""Markers in code for servers that take a prompt as text: a zero-width space in each, undone in the text that they return.

A server's tokenizer reads a marker in a text as the special token. Escaping adds one zero-width space behind a marker's first two
characters, also where the code has some there itself, and undoing removes one: every text comes back as it was.
"""

import re
from collections.abc import Iterable

ESCAPE = "\u200b"
HEAD = 2
"""Characters of a marker before the escape."""


class Escapes:
    """Escapes the given markers in code."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(sorted({marker for marker in markers if len(marker) > HEAD}, key=len, reverse=True))
        whole = "|".join(f"{re.escape(marker[:HEAD])}{ESCAPE}*{re.escape(marker[HEAD:])}" for marker in self.markers)
        self.pattern = re.compile(whole or r"(?!)")

    def escape(self, code: str) -> str:
        """Return code in which no marker is left."""
        return self.pattern.sub(lambda found: found[0][:HEAD] + ESCAPE + found[0][HEAD:], code)


class Unescaping:
    """Undoes escapes in a stream of text. A marker that is not escaped is the server's own token, and ends the text."""

    def __init__(self, escapes: Escapes) -> None:
        self._escapes = escapes
        self._kept = ""
        """Text that may begin a marker."""
        self.ended = False

    def feed(self, text: str) -> str:
        """Add text; return the code that is complete."""
        if self.ended:
            return ""
        self._kept += text
        code = ""
        while not self.ended and (found := self._escapes.pattern.search(self._kept)):
            marker = found[0]
            code += self._kept[: found.start()]
            self.ended = not marker.startswith(ESCAPE, HEAD)
            self._kept = "" if self.ended else self._kept[found.end() :]
            code += "" if self.ended else marker[:HEAD] + marker[HEAD + 1 :]
        begun = self._begun()
        code, self._kept = code + self._kept[:begun], self._kept[begun:]
        return code

    def flush(self) -> str:
        """Return the rest, after the last text: of a marker that was cut, without the escape."""
        rest, self._kept = self._kept, ""
        return rest[:HEAD] + rest[HEAD:].removeprefix(ESCAPE)

    def _begun(self) -> int:
        """Return where the text begins that may become a marker."""
        text = self._kept
        for start, character in enumerate(text):
            head, rest = text[start : start + HEAD], text[start + HEAD :].lstrip(ESCAPE)
            if any(
                character == marker[0] and (marker.startswith(head) and (not rest or marker.startswith(rest, HEAD)))
                for marker in self._escapes.markers
            ):
                return start
        return len(text)
