"""Tokens to text, one at a time, and where a stop string ends it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from infra import fim


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    file = model / "tokenizer.json"
    if not file.exists():
        raise SystemExit(f"{model}: no tokenizer.json; is model.base right?")
    return Tokenizer.from_file(str(file))


def stop_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that end a completion: none of the frame's tokens belongs into code."""
    found = (tokenizer.token_to_id(token) for token in fim.SPECIAL_TOKENS)
    return sorted(identifier for identifier in found if identifier is not None)


class Reader:
    """Reads sampled tokens back as text that may be shown.

    Text is withheld while it may be the beginning of a stop string or half a character; `text` is what was given out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._generated = ""
        self.text = ""
        self.ends: list[int] = []
        """Characters of the generated text after each token."""
        self.stopped = False
        """A stop string was found, or the end token."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Read more tokens; gives back the text that is certain now."""
        before = len(self._generated)
        for token in token_ids:
            self._generated += self._stream.step(self._tokenizer, token) or ""
            self.ends.append(len(self._generated))
        return self._certain(before)

    def feed_text(self, text: str) -> str:
        """Read more text of a server that tells no tokens; gives back what is certain now."""
        before = len(self._generated)
        self._generated += text
        return self._certain(before)

    def flush(self) -> str:
        """The rest, once no more tokens come."""
        return "" if self.stopped else self._show(len(self._generated))

    def _certain(self, before: int) -> str:
        found = self._find_stop(before)
        if found is not None:
            self.stopped = True
            return self._show(found)
        return self._show(len(self._generated) - self._possible_stop())

    def _show(self, end: int) -> str:
        shown = self._generated[len(self.text) : end]
        self.text += shown
        return shown

    def _find_stop(self, before: int) -> int | None:
        """Where the stop string begins that is complete first, whatever tokens it came in."""
        found = []
        for stop in self._stop:
            at = self._generated.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                found.append((at + len(stop), at))
        return min(found)[1] if found else None

    def _possible_stop(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._generated)), longest, -1):
                if self._generated.endswith(stop[:length]):
                    longest = length
                    break
        return longest
