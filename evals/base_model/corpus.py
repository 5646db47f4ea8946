"""Training text of the base model: a tokenizer, and fill-in-the-middle examples packed into rows of token ids.

Examples are rendered as prompts are served (infra/model/fim.py): the text around the cursor is cut at characters, and each
piece is tokenised by itself. Legend: N rows, T tokens of a row.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from evals.base_model.sources import STANDARD_LIBRARY, package_of
from infra.model.fim import SPECIAL_TOKENS, Renderer
from tasks.evaluation.heldout import read_source

PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Pre-tokenisation of Qwen2: words with their leading mark, single digits, runs of punctuation, line ends with blank lines."""

PACKAGE_CAP = 4_000_000
"""Most bytes taken from one package, so that no single style dominates; the standard library may have four times as many."""
MAX_PREFIX, MAX_SUFFIX = 560, 170
"""Most characters before and after the cursor, about as many as fit the served prompt."""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer with Qwen's fill-in-the-middle tokens as ids 0 to 6."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def truncate(files: Iterable[Path], seed: int) -> list[Path]:
    """Return the files in a seeded order, without those beyond their package's PACKAGE_CAP."""
    files = sorted(files)
    random.Random(seed).shuffle(files)
    used: dict[str, int] = {}
    taken = []
    for file in files:
        package = package_of(file)
        limit = PACKAGE_CAP * (4 if package == STANDARD_LIBRARY else 1)
        if used.get(package, 0) < limit:
            used[package] = used.get(package, 0) + file.stat().st_size
            taken.append(file)
    return taken


@dataclass(frozen=True)
class Example:
    """One cursor."""

    prefix: str  # text before it
    suffix: str  # text after it
    middle: str  # text to write between them


def examples(text: str, rng: random.Random) -> Iterator[Example]:
    """Yield cursors through one file, about one for every MAX_PREFIX characters, so that most of the file is read once."""
    at = rng.randrange(min(len(text), MAX_PREFIX))
    while at < len(text) - 1:
        start, end = _span(text, at, rng)
        reach = MAX_PREFIX if rng.random() < 0.8 else rng.randrange(1, MAX_PREFIX)
        after = 0 if rng.random() < 0.1 else rng.randrange(20, MAX_SUFFIX)
        yield Example(text[max(0, start - reach) : start], text[end : end + after], text[start:end])
        at = end + rng.randrange(MAX_PREFIX // 2, MAX_PREFIX)


def _span(text: str, at: int, rng: random.Random) -> tuple[int, int]:
    """Choose the missing span: mostly the rest of a line, sometimes a piece of it or a few lines."""
    begin = text.rfind("\n", 0, at) + 1
    line_end = _line_end(text, at)
    indent = len(text[begin:line_end]) - len(text[begin:line_end].lstrip())
    kind = rng.random()
    if kind < 0.65:
        # A cursor stands at the start of a line, after punctuation, or anywhere inside a word.
        stops = [i + 1 for i in range(begin + indent, line_end) if text[i] in " .(=,[:" and i + 1 < line_end]
        choice = rng.random()
        if choice < 0.25:
            at = begin + indent
        elif choice < 0.65 and stops:
            at = rng.choice(stops)
        return at, line_end
    if kind < 0.8:
        return at, min(line_end, at + rng.randrange(1, 40))
    end = line_end
    for _ in range(rng.randrange(1, 4)):
        end = _line_end(text, min(end + 1, len(text)))
    return (begin + indent if rng.random() < 0.6 else at), end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def rows(files: list[Path], renderer: Renderer, length: int, seed: int) -> Iterator[np.ndarray]:
    """Yield rows of `length` token ids [T], uint16: examples end to end, cut where a row is full; again with other cursors."""
    pending: list[int] = []
    for turn in range(1_000_000):
        rng = random.Random(f"{seed}/{turn}")
        for file in files:
            for example in examples(read_source(file) or "", rng):
                pending += [*renderer.render(example.prefix, example.suffix), *renderer.encode(example.middle), renderer.end]
                while len(pending) >= length:
                    yield np.asarray(pending[:length], dtype=np.uint16)
                    pending = pending[length:]


def write_rows(files: list[Path], renderer: Renderer, length: int, count: int, seed: int, out: Path) -> np.ndarray:
    """Write `count` shuffled rows [N, T] to a .npy file, and return it memory-mapped.

    Rows of one file next to one another would make batches of a single style: the model would learn the newest file and forget
    the earlier ones (infra/docs/measurements.md).
    """
    array = np.lib.format.open_memmap(out, mode="w+", dtype=np.uint16, shape=(count, length))
    for index, row in enumerate(islice(rows(files, renderer, length, seed), count)):
        array[index] = row
    np.random.default_rng(seed).shuffle(array)
    array.flush()
    return np.load(out, mmap_mode="r")
