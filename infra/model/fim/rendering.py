"""Fill-in-the-middle (FIM) prompts as token ids, in the order of the served model.

Prefix and suffix are tokenised separately and framed by token id. A marker in the code itself is plain text to the tokenizer
(tokens.py), so it cannot break the frame, and the model's text is the code as it is.
FIM: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle" (PSM and SPM orders).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tokenizers import Encoding, Tokenizer

from infra.model.fim.formats import END, MIDDLE, PREFIX, SUFFIX, Order
from infra.model.fim.tokens import code_encoder
from infra.model.line_ends import normal, normal_context

FRAME_TOKENS = 3
"""Marker tokens in a rendered prompt."""
TOGETHER = 64
"""Texts that are encoded at a time: the encodings of a thousand texts take 100 MB."""


@dataclass(frozen=True)
class Renderer:
    """Renders code around a cursor as the token ids of a prompt."""

    tokenizer: Tokenizer
    order: Order
    max_prefix_tokens: int
    max_suffix_tokens: int
    encoder: Tokenizer | None = None
    """The tokenizer of code (tokens.code_encoder); None: made here."""

    def __post_init__(self) -> None:
        if self.encoder is None:
            object.__setattr__(self, "encoder", code_encoder(self.tokenizer))

    @property
    def max_code_tokens(self) -> int:
        """Maximum code tokens in a prompt."""
        return self.max_prefix_tokens + self.max_suffix_tokens

    def within(self, tokens: int) -> "Renderer":
        """Return a renderer of prompts with at most this many tokens, with the same ratio of prefix to suffix."""
        code = max(0, tokens - FRAME_TOKENS)
        if code >= self.max_code_tokens:
            return self
        suffix = code * self.max_suffix_tokens // self.max_code_tokens
        return replace(self, max_prefix_tokens=code - suffix, max_suffix_tokens=suffix)

    def render(self, prefix: str, suffix: str) -> list[int]:
        """Return the token ids of the prompt. Code farthest from the cursor is cut first; the markers always stay.

        Its lines end in LF, whatever ends them in the document (infra/model/line_ends.py).
        """
        prefix, suffix = normal_context(prefix, suffix)
        encoded = self._encoder.encode(prefix, add_special_tokens=False)
        return self._framed(self._nearest(prefix, encoded), self.encode(suffix))

    def render_all(self, contexts: Sequence[tuple[str, str]]) -> Iterator[list[int]]:
        """Yield what `render` returns for each pair of a prefix and a suffix; the tokenizer uses all cores."""
        for at in range(0, len(contexts), TOGETHER):
            some = [normal_context(*context) for context in contexts[at : at + TOGETHER]]
            prefixes, suffixes = ([context[side] for context in some] for side in (0, 1))
            before = self._encoder.encode_batch(prefixes, add_special_tokens=False)
            after = self._encoder.encode_batch_fast(suffixes, add_special_tokens=False)
            for prefix, encoded, behind in zip(prefixes, before, after, strict=True):
                yield self._framed(self._nearest(prefix, encoded), behind.ids)

    def _framed(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Return the prompt of the tokens before the cursor, and as many of those behind it as it may have."""
        after = after[: self.max_suffix_tokens]
        begin, end, middle = self._id(PREFIX), self._id(SUFFIX), self._id(MIDDLE)
        if self.order == "psm":
            return [begin, *before, end, *after, middle]
        return [end, *after, begin, *before, middle]

    def code_of(self, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the token ids of the code before and after the cursor of a rendered prompt, in either order."""
        begin, end, middle = self._id(PREFIX), self._id(SUFFIX), self._id(MIDDLE)
        parts: dict[int, list[int]] = {begin: [], end: [], middle: []}
        part: list[int] = []
        for token in prompt:
            if token in parts:
                part = parts[token]
            else:
                part.append(token)
        return parts[begin], parts[end]

    def text_of(self, prompt: Sequence[int], escape: Callable[[str], str]) -> str:
        """Return a rendered prompt as text: its own markers as they are, the code between them through `escape`."""
        markers = {self._id(marker): marker for marker in (PREFIX, SUFFIX, MIDDLE)}
        text, part = "", list[int]()
        for token in prompt:
            if token in markers:
                text += escape(self._decode(part)) + markers[token]
                part = []
            else:
                part.append(token)
        return text + escape(self._decode(part))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; markers in it are plain text, and its lines end in LF."""
        return self._encoder.encode(normal(text), add_special_tokens=False).ids

    @property
    def _encoder(self) -> Tokenizer:
        assert self.encoder is not None
        return self.encoder

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    @property
    def end(self) -> int:
        """Return the id of the end token."""
        return self._id(END)

    def _nearest(self, prefix: str, encoded: Encoding) -> list[int]:
        """Return the tokens at the end of the prefix, from the start of a line if one is near.

        The start then moves once every few lines and not with every token a developer types, so consecutive prompts begin
        alike and hit the engine's prefix cache.
        """
        ids: list[int] = encoded.ids
        first = len(ids) - self.max_prefix_tokens
        if first <= 0:
            return ids
        starts = range(first, first + self.max_prefix_tokens // 4)
        # Not `encoded.offsets`, which builds a list of all of them.
        at_line = (i for i in starts if (at := encoded.token_to_chars(i)) and prefix[at[0] - 1] == "\n")
        return ids[next(at_line, first) :]

    def _id(self, token: str) -> int:
        identifier = self.tokenizer.token_to_id(token)
        if identifier is None:
            raise ValueError(f"tokenizer: no token {token}; choose a model trained to fill in the middle (model.base)")
        return identifier
