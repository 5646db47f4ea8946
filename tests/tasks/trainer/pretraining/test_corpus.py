"""Training examples are pieces of real files, rendered as served, and never of held-out packages."""

import random
from itertools import pairwise

import numpy as np
import pytest

from evals.heldout import HELD_OUT_PACKAGES, held_out_files, read_source, site_packages, training_files
from infra.fim import END, MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX, Renderer
from tasks.trainer.pretraining import corpus, sources

TEXT = (
    '''def area(width: float, height: float) -> float:
    """Grüße, 世界."""
    if width < 0:
        raise ValueError("width")

    return width * height
'''
    * 20
)


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.train_tokenizer([TEXT], 400)


def test_tokenizer_keeps_every_character_and_qwens_ids(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(7))


def test_examples_are_contiguous_and_mostly_rests_of_lines():
    examples = [e for seed in range(200) for e in corpus.examples(TEXT, random.Random(seed))]
    assert all(e.prefix + e.middle + e.suffix in TEXT for e in examples)
    rests = sum("\n" not in e.middle and (e.suffix[:1] in ("\n", "")) for e in examples)
    assert rests > 0.6 * len(examples)


def test_rows_are_framed_as_served(tokenizer, tmp_path):
    (tmp_path / "a.py").write_text(TEXT)
    renderer = Renderer(tokenizer, "spm", 300, 90)
    rows = corpus.write_rows([tmp_path / "a.py"], renderer, 64, 50, 0, tmp_path / "rows.npy")
    again = corpus.write_rows([tmp_path / "a.py"], renderer, 64, 50, 0, tmp_path / "again.npy")
    assert rows.shape == (50, 64) and np.array_equal(rows, again)
    frame = [SUFFIX, PREFIX, MIDDLE, END]
    markers = 0
    for row in rows:
        marks = [SPECIAL_TOKENS[t] for t in row if t < len(SPECIAL_TOKENS)]
        first = frame.index(marks[0]) if marks else 0
        assert marks == (frame * 20)[first : first + len(marks)]
        markers += len(marks)
    assert markers > 8


def test_neighbouring_rows_come_from_different_files(tokenizer, tmp_path):
    letters = "abcdefgh"
    for letter in letters:
        (tmp_path / f"{letter}.py").write_text(f"{letter} = {letter} + {letter}\n" * 200)
    renderer = Renderer(tokenizer, "spm", 40, 12)
    files = [tmp_path / f"{letter}.py" for letter in letters]
    rows = corpus.write_rows(files, renderer, 64, 64, 0, tmp_path / "rows.npy")
    written = [tokenizer.decode(row.tolist()) for row in rows]
    most = [max(letters, key=text.count) for text in written]
    assert sum(a == b for a, b in pairwise(most)) < 24, "unshuffled, 56 of 63 neighbours share their file"


def test_held_out_code_is_never_trained_on():
    trained = training_files()
    assert len(trained) > 1000
    assert not {file.relative_to(site_packages()).parts[0] for file in trained if site_packages() in file.parents} & set(
        HELD_OUT_PACKAGES
    )
    held = {line for file in held_out_files() for line in (read_source(file) or "").splitlines() if len(line.strip()) >= 60}
    sample = random.Random(0).sample(trained, 300)
    for file in sample:
        lines = [line for line in (read_source(file) or "").splitlines() if len(line.strip()) >= 60]
        assert sum(line in held for line in lines) <= max(3, 0.2 * len(lines)), file


def test_sources_are_listed_with_version_and_licence(tmp_path):
    listed = sources.table({"numpy": 2_000_000, sources.STANDARD_LIBRARY: 1_000_000})
    assert "numpy " in listed and "(2.00)" in listed and "**PSF-2.0**: the standard library 3.11" in listed
