"""The texts of an event, and the part of them that is kept."""

from dataclasses import dataclass, replace

from infra.model.line_ends import BREAK

KEPT_CHARACTERS = 8_192
"""Fewest characters of a prefix, and of a suffix, that are stored."""
CUT_STEP = 4_096
"""A prefix is cut at a multiple of this, so that its beginning stays the same while one types (infra/docs/how/recording.md)."""
MARGIN = 2_048
"""Characters beyond the stored part that are searched too, so that no part of a secret remains at its edge."""


@dataclass(frozen=True)
class Texts:
    """The texts of an event."""

    prefix: str
    middles: tuple[str, ...]
    """Texts inserted between prefix and suffix."""
    suffix: str
    language: str = ""
    """Ending or language of the file (infra/model/language.py); empty: determined from the text."""
    margins: tuple[int, int] = (0, 0)
    """Characters at the start of the prefix and at the end of the suffix that are searched and not kept."""
    consecutive: bool = False
    """Whether the middles also follow each other at the cursor."""

    @property
    def characters(self) -> int:
        """Characters of all texts together."""
        return len(self.prefix) + len(self.suffix) + sum(map(len, self.middles))

    @property
    def cursor_line(self) -> int:
        """Characters of the line at the cursor, without the middles."""
        begin = max(self.prefix.rfind("\n"), self.prefix.rfind("\r"))
        end = BREAK.search(self.suffix)
        return len(self.prefix) - begin + (end.start() if end else len(self.suffix))

    def within_margins(self) -> "Texts":
        """Return the texts without their margins."""
        if self.margins == (0, 0):
            return self
        before, after = self.margins
        return replace(self, prefix=self.prefix[before:], suffix=self.suffix[: len(self.suffix) - after], margins=(0, 0))


@dataclass(frozen=True)
class Kept:
    """Characters of an event's prefix and suffix that are kept at least, and never more than CUT_STEP more of a prefix."""

    prefix: int = KEPT_CHARACTERS
    suffix: int = KEPT_CHARACTERS

    def cut(self, texts: Texts) -> Texts:
        """Return the part of the texts that is kept, with its margins."""
        start = max(0, len(texts.prefix) - self.prefix) // CUT_STEP * CUT_STEP
        if start == 0 and len(texts.suffix) <= self.suffix:
            return texts
        before, end = min(start, MARGIN), min(len(texts.suffix), self.suffix)
        suffix = texts.suffix[: end + MARGIN]
        return replace(texts, prefix=texts.prefix[start - before :], suffix=suffix, margins=(before, len(suffix) - end))
