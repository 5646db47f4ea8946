"""Training examples are pieces of real files, rendered as for serving, and never from held-out packages."""

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from evals.base_model import corpus, sources
from evals.base_model.sources import training_files
from infra.model.fim import END, MIDDLE, PREFIX, SPECIAL_TOKENS, SUFFIX, Renderer
from tasks.evaluation.heldout import HELD_OUT_PACKAGES, held_out_files, read_source, site_packages

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


def test_examples_are_contiguous_and_mostly_end_at_the_line_end():
    examples = [e for seed in range(200) for e in corpus.examples(TEXT, random.Random(seed))]
    assert all(e.prefix + e.middle + e.suffix in TEXT for e in examples)
    rests = sum("\n" not in e.middle and (e.suffix[:1] in ("\n", "")) for e in examples)
    assert rests > 0.6 * len(examples)


def test_rows_have_the_markers_of_serving(tokenizer, tmp_path):
    (tmp_path / "a.py").write_text(TEXT)
    renderer = Renderer(tokenizer, "spm", 300, 90)
    rows = corpus.write_rows([tmp_path / "a.py"], renderer, 64, 50, 0, tmp_path / "rows.npy")
    repeated = corpus.write_rows([tmp_path / "a.py"], renderer, 64, 50, 0, tmp_path / "again.npy")
    assert rows.shape == (50, 64) and np.array_equal(rows, repeated)
    frame = [SUFFIX, PREFIX, MIDDLE, END]
    markers = 0
    for row in rows:
        row_markers = [SPECIAL_TOKENS[t] for t in row if t < len(SPECIAL_TOKENS)]
        first = frame.index(row_markers[0]) if row_markers else 0
        assert row_markers == (frame * 20)[first : first + len(row_markers)]
        markers += len(row_markers)
    assert markers > 8


def test_neighbouring_rows_come_from_different_files(tokenizer, tmp_path):
    letters = "abcdefgh"
    for letter in letters:
        (tmp_path / f"{letter}.py").write_text(f"{letter} = {letter} + {letter}\n" * 200)
    renderer = Renderer(tokenizer, "spm", 40, 12)
    files = [tmp_path / f"{letter}.py" for letter in letters]
    rows = corpus.write_rows(files, renderer, 64, 64, 0, tmp_path / "rows.npy")
    texts = [tokenizer.decode(row.tolist()) for row in rows]
    file_letters = [max(letters, key=text.count) for text in texts]
    assert sum(a == b for a, b in pairwise(file_letters)) < 24, "unshuffled, 56 of 63 neighbours share their file"


@pytest.mark.long(reason="it reads the whole corpus, which changes with the sources alone")
def test_training_files_have_no_held_out_code():
    training = training_files()
    assert len(training) > 1000
    installed = site_packages()
    packages = {file.relative_to(installed).parts[0] for file in training if installed in file.parents}
    assert not packages & set(HELD_OUT_PACKAGES)
    held_out_lines = {
        line for file in held_out_files() for line in (read_source(file) or "").splitlines() if len(line.strip()) >= 60
    }
    sampled = random.Random(0).sample(training, 300)
    for file in sampled:
        lines = [line for line in (read_source(file) or "").splitlines() if len(line.strip()) >= 60]
        assert sum(line in held_out_lines for line in lines) <= max(3, 0.2 * len(lines)), file


def test_sources_are_listed_with_version_and_licence(tmp_path):
    table = sources.table({"numpy": 2_000_000, sources.STANDARD_LIBRARY: 1_000_000})
    assert "numpy " in table and "(2.00)" in table and "**PSF-2.0**: the standard library 3.11" in table


def test_the_layout_of_the_tokenizer_names_the_special_tokens():
    layout = json.loads((Path(corpus.__file__).parent / "layout/tokenizer_config.json").read_text())
    assert {layout["eos_token"], layout["pad_token"], *layout["additional_special_tokens"]} == {*SPECIAL_TOKENS}
