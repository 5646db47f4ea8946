"""Token ids to text, one token at a time, up to the first stop string."""

from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from infra.model import fim
from infra.model.line_ends import LineEnd, normal


def load_tokenizer(model: Path) -> Tokenizer:
    file = model / "tokenizer.json"
    if not file.exists():
        raise SystemExit(f"{model}: no tokenizer.json; set model.base to the directory of a checkpoint")
    return Tokenizer.from_file(str(file))


def stop_token_ids(tokenizer: Tokenizer, model: Path | None = None) -> list[int]:
    """Return the tokens that end a completion: the tokenizer's control tokens, and those that the checkpoint declares."""
    return fim.end_token_ids(tokenizer, model)


class Detokenizer:
    """Turns sampled tokens into text that may be shown.

    Text that may be the beginning of a stop string, or half a character, is kept until more tokens arrive. The text ends before
    the first of the tokens `ends` (None: those of the tokenizer), whose own text is no stop string: in code it is code. `text` is
    the text returned so far. Its lines have the document's ends, whichever the model writes, and so have those of stop strings.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], ends: Collection[int] | None = None, line_end: LineEnd = "\n"
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._line_end = line_end
        self._returned = False
        """Whether the model's last character is CR: a LF behind it belongs to the same line end."""
        self._end_ids = frozenset(stop_token_ids(tokenizer) if ends is None else ends)
        wanted = (one for one in stop if tokenizer.token_to_id(one) not in self._end_ids)
        self._stop = [normal(one).replace("\n", line_end) for one in wanted]
        self.generated = ""
        """All text, including the text not returned yet."""
        self.text = ""
        self.ends: list[int] = []
        """Length in characters of the generated text after each token."""
        self.stopped = False
        """Whether a stop string was found."""
        self.ended = False
        """Whether a token that ends the text was added; tokens behind it are ignored."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that may be shown now."""
        before = len(self.generated)
        for token in token_ids:
            if self.ended:
                break
            self.ended = token in self._end_ids
            self.generated += "" if self.ended else self._own_lines(self._stream.step(self._tokenizer, token) or "")
            self.ends.append(len(self.generated))
        text = self._release(before)
        return text + self.flush() if self.ended else text

    def feed_text(self, text: str) -> str:
        """Add text, of a server that reports no tokens; return the text that may be shown now."""
        before = len(self.generated)
        self.generated += self._own_lines(text)
        return self._release(before)

    def flush(self) -> str:
        """Return the rest of the text, after the last token."""
        return "" if self.stopped else self._release_to(len(self.generated))

    def _own_lines(self, text: str) -> str:
        """Return newly sampled text with the document's line ends."""
        if not text:
            return text
        new = normal(text.removeprefix("\n") if self._returned else text)
        self._returned = text.endswith("\r")
        return new if self._line_end == "\n" else new.replace("\n", self._line_end)

    def _release(self, before: int) -> str:
        stop_start = self._find_stop(before)
        if stop_start is not None:
            self.stopped = True
            return self._release_to(stop_start)
        return self._release_to(len(self.generated) - self._possible_stop())

    def _release_to(self, end: int) -> str:
        text = self.generated[len(self.text) : end]
        self.text += text
        return text

    def _find_stop(self, before: int) -> int | None:
        """Return the start of the stop string that ends first, independent of how the text was cut into tokens."""
        matches = []
        for stop in self._stop:
            start = self.generated.find(stop, max(0, before - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        return min(matches)[1] if matches else None

    def _possible_stop(self) -> int:
        """Return the number of characters at the end that may begin a stop string; those returned already begin none."""
        for start in range(len(self.text), len(self.generated)) if self._stop else ():
            end = self.generated[start:]
            if any(stop.startswith(end) for stop in self._stop):
                return len(end)
        return 0
