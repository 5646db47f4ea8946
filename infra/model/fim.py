"""Fill-in-the-middle (FIM) prompts: parses those of editors, renders them in the order of the served model.

Prefix and suffix are tokenised separately and framed by token id, so code that contains a FIM marker cannot break the frame.
FIM: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle" (PSM and SPM orders).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from infra.model.line_ends import normal, normal_context

PREFIX, SUFFIX, MIDDLE, PAD = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"
END, REPOSITORY, FILE = "<|endoftext|>", "<|repo_name|>", "<|file_sep|>"
SPECIAL_TOKENS = (END, PREFIX, MIDDLE, SUFFIX, PAD, REPOSITORY, FILE)
FOREIGN = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StableCode, Granite
    ("<PRE> ", " <SUF>", " <MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
"""Other models' markers before the prefix, before the suffix and at the cursor; an editor chooses them by the model's name."""
FOREIGN_SPM = (
    ("[SUFFIX]", "[PREFIX]", ""),  # Codestral
    ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),  # Seed-Coder
)
"""Markers of models that take the suffix first: before the suffix, before the prefix and at the cursor."""
FRAME_TOKENS = 3
"""Marker tokens in a rendered prompt."""

Order = Literal["psm", "spm"]


class Encoder(Protocol):
    """The part of a tokenizer that rendering needs; tokenizers.Tokenizer implements it."""

    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> "Encoded": ...
    def token_to_id(self, token: str) -> int | None: ...


class Encoded(Protocol):
    """The result of Encoder.encode."""

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
    """Code of other files at the start of the editor's prompt, with repository and file markers, as sent."""


def path_of(context: Context) -> str:
    """Return the path of the file with the cursor, which stands last in the preamble; empty if the prompt does not name it."""
    _, marker, path = context.preamble.rpartition(FILE)
    return path.removesuffix("\n") if marker and path.count("\n") == path.endswith("\n") else ""


def parse_prompt(prompt: str) -> Context:
    """Return the context in an editor's prompt `[PREAMBLE]<|fim_prefix|>PREFIX<|fim_suffix|>SUFFIX<|fim_middle|>`.

    A prompt without markers is a plain prefix. The code may itself contain marker text: the first prefix marker, the last middle
    marker and the last suffix marker before it form the frame. If the prompt ends like another model's, that model's frame is
    parsed the same way.

    Raises:
        ValueError: the prompt has markers, but not in that order.
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
                raise ValueError(_frame_error(first, between, end))
            return Context(prefix[0], suffix)
    return Context(prefix=prompt, suffix="")


def _framed(prompt: str, before: str, between: str, end: str) -> Context:
    start, last = prompt.find(before), prompt.rfind(end)
    middle = prompt.rfind(between, 0, last) if last >= 0 else -1
    if start < 0 or middle < start + len(before):
        raise ValueError(_frame_error(before, between, end))
    return Context(prompt[start + len(before) : middle], prompt[middle + len(between) : last], prompt[:start])


def _frame_error(*markers: str) -> str:
    return (
        f"prompt: contains FIM markers, but not in the order {'...'.join(markers)}; "
        f"choose Qwen's template in the editor ({PREFIX}...{SUFFIX}...{MIDDLE}; Continue uses it if the model's name contains "
        "'qwen' and 'coder'), or send no markers"
    )


def request_context(prompt: str, prefix: str, suffix: str) -> tuple[str, str]:
    """Return the prefix and suffix of the completion request that an event describes.

    The prompt is the request's; prefix and suffix may hold more of the file, or other files' code under the editor's own markers.
    They are returned if the prompt has no valid frame.
    """
    try:
        context = parse_prompt(prompt)
    except ValueError:
        return prefix, suffix
    framed = context != Context(prompt, "")
    return (context.prefix, context.suffix) if framed else (prefix, suffix)


def _escape_markers(text: str) -> str:
    """Return text with a zero-width space in every marker, so that a tokenizer reads it as plain text."""
    for marker in SPECIAL_TOKENS:
        text = text.replace(marker, marker[:2] + "\u200b" + marker[2:])
    return text


@dataclass(frozen=True)
class Renderer:
    """Renders code around a cursor as the token ids of a prompt."""

    encoder: Encoder
    order: Order
    max_prefix_tokens: int
    max_suffix_tokens: int

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
        before = self._nearest(prefix)
        after = self.encode(suffix)[: self.max_suffix_tokens]
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

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; markers in it are plain text, and its lines end in LF."""
        return self.encoder.encode(_escape_markers(normal(text)), add_special_tokens=False).ids

    @property
    def end(self) -> int:
        """Return the id of the end token."""
        return self._id(END)

    def _nearest(self, prefix: str) -> list[int]:
        """Return the tokens at the end of the prefix, from the start of a line if one is near.

        The start then moves once every few lines and not with every token a developer types, so consecutive prompts begin
        alike and hit the engine's prefix cache.
        """
        text = _escape_markers(prefix)
        encoded = self.encoder.encode(text, add_special_tokens=False)
        ids = encoded.ids
        first = len(ids) - self.max_prefix_tokens
        if first <= 0:
            return ids
        offsets = encoded.offsets  # each access builds a new list
        starts = range(first, first + self.max_prefix_tokens // 4)
        return ids[next((i for i in starts if text[offsets[i][0] - 1] == "\n"), first) :]

    def _id(self, token: str) -> int:
        identifier = self.encoder.token_to_id(token)
        if identifier is None:
            raise ValueError(f"tokenizer: no token {token}; choose a model trained to fill in the middle (model.base)")
        return identifier
