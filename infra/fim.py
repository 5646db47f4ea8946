"""Fill-in-the-middle prompts: taken apart as editors send them, rendered in the order the served model was trained on.

Text is tokenised piece by piece and framed by token id, so that code which holds a FIM token's text cannot break the frame.
FIM: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle" (PSM and SPM orders).
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

PREFIX, SUFFIX, MIDDLE, PAD = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"
END, REPOSITORY, FILE = "<|endoftext|>", "<|repo_name|>", "<|file_sep|>"
SPECIAL_TOKENS = (END, PREFIX, MIDDLE, SUFFIX, PAD, REPOSITORY, FILE)
FOREIGN = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StableCode, Granite
    ("<PRE> ", " <SUF>", " <MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
"""Other models' marks before the prefix, before the suffix and at the cursor: an editor chooses them by the model's name."""
FOREIGN_SPM = (
    ("[SUFFIX]", "[PREFIX]", ""),  # Codestral
    ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),  # Seed-Coder
)
"""The same of models that want the suffix first: marks before the suffix, before the prefix and at the cursor."""
FRAME_TOKENS = 3
"""Tokens of a rendered prompt that are no code."""

Order = Literal["psm", "spm"]


class Encoder(Protocol):
    """What is needed of a tokenizer (tokenizers.Tokenizer fits)."""

    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> "Encoded": ...
    def token_to_id(self, token: str) -> int | None: ...


class Encoded(Protocol):
    """Result of Encoder.encode."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


@dataclass(frozen=True)
class Context:
    """The code around a cursor."""

    prefix: str
    suffix: str
    preamble: str = ""
    """Other files that the editor put in front (repository and file markers), as sent."""


def take_apart(prompt: str) -> Context:
    """Split an editor's prompt `[...]<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>` at the outermost markers.

    A prompt without markers is a plain prefix. Code between the markers may hold marker text itself: the first prefix
    marker, the last middle marker and the last suffix marker before it are the frame. Another model's frame is taken apart in
    the same way, where the prompt ends as that model's does.

    Raises:
        ValueError: markers are present but not in that order.
    """
    if PREFIX in prompt or SUFFIX in prompt or prompt.endswith(MIDDLE):
        return _framed(prompt, PREFIX, SUFFIX, MIDDLE)
    for before, between, end in FOREIGN:
        if prompt.endswith(end):
            return _framed(prompt, before, between, end)
    for first, between, end in FOREIGN_SPM:
        if prompt.startswith(first) and prompt.endswith(end):
            suffix, *prefix = prompt.removeprefix(first).removesuffix(end).split(between)
            if len(prefix) != 1:
                raise ValueError(_unclear(first, between, end))
            return Context(prefix[0], suffix)
    return Context(prefix=prompt, suffix="")


def _framed(prompt: str, before: str, between: str, end: str) -> Context:
    start, last = prompt.find(before), prompt.rfind(end)
    middle = prompt.rfind(between, 0, last) if last >= 0 else -1
    if start < 0 or middle < start + len(before):
        raise ValueError(_unclear(before, between, end))
    return Context(prompt[start + len(before) : middle], prompt[middle + len(between) : last], prompt[:start])


def _unclear(*markers: str) -> str:
    return (
        f"prompt: found FIM markers but not as {'...'.join(markers)}; "
        f"choose Qwen's template in the editor ({PREFIX}...{SUFFIX}...{MIDDLE}; Continue takes it where the model's name holds "
        "'qwen' and 'coder'), or send no markers at all"
    )


def asked(prompt: str, prefix: str, suffix: str) -> tuple[str, str]:
    """Prefix and suffix that an editor asked with, of an event that tells all three.

    The prompt is what was sent; beside it may stand more of the file, or other files' code under marks of the editor's own.
    """
    try:
        context = take_apart(prompt)
    except ValueError:
        return prefix, suffix
    framed = context != Context(prompt, "")
    return (context.prefix, context.suffix) if framed else (prefix, suffix)


def _unmarked(text: str) -> str:
    """A tokenizer would read marker text in code as the markers; a zero-width joint keeps it text."""
    for marker in SPECIAL_TOKENS:
        text = text.replace(marker, marker[:2] + "\u200b" + marker[2:])
    return text


@dataclass(frozen=True)
class Renderer:
    """Renders a context as token ids in the model's own order."""

    encoder: Encoder
    order: Order
    max_prefix_tokens: int
    max_suffix_tokens: int

    @property
    def most_code(self) -> int:
        """Tokens of code in the longest prompt."""
        return self.max_prefix_tokens + self.max_suffix_tokens

    def within(self, tokens: int) -> "Renderer":
        """One whose prompts have no more than so many tokens, shared out between prefix and suffix as before."""
        code = max(0, tokens - FRAME_TOKENS)
        if code >= self.most_code:
            return self
        suffix = code * self.max_suffix_tokens // self.most_code
        return replace(self, max_prefix_tokens=code - suffix, max_suffix_tokens=suffix)

    def render(self, prefix: str, suffix: str) -> list[int]:
        """Token ids of the prompt; what lies farthest from the cursor is cut first, and the frame stays whole."""
        before = self._nearest(prefix)
        after = self.encode(suffix)[: self.max_suffix_tokens]
        begin, end, middle = self._id(PREFIX), self._id(SUFFIX), self._id(MIDDLE)
        if self.order == "psm":
            return [begin, *before, end, *after, middle]
        return [end, *after, begin, *before, middle]

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text; marker text in it stays text."""
        return self.encoder.encode(_unmarked(text), add_special_tokens=False).ids

    def _nearest(self, prefix: str) -> list[int]:
        """The end of the prefix, from the start of a line where one is near.

        While a developer types, that start moves with every few tokens' worth of lines and not with every token: the prompt
        begins as the one before it did, and the engine's prefix cache holds most of it.
        """
        text = _unmarked(prefix)
        found = self.encoder.encode(text, add_special_tokens=False)
        ids = found.ids
        first = len(ids) - self.max_prefix_tokens
        if first <= 0:
            return ids
        offsets = found.offsets  # made anew whenever it is asked for
        starts = range(first, first + self.max_prefix_tokens // 4)
        return ids[next((i for i in starts if text[offsets[i][0] - 1] == "\n"), first) :]

    def _id(self, token: str) -> int:
        identifier = self.encoder.token_to_id(token)
        if identifier is None:
            raise ValueError(f"tokenizer: no token {token}; the model cannot fill in the middle")
        return identifier
