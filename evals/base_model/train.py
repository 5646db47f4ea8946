"""Trains the small base model on Python sources that every installation has: tokenizer, data, training, export.

torchrun --standalone --nproc_per_node 2 -m infra.cli base train --tokens 16000000 --threads 1

The folder `layout` holds the model's shape and the settings of its tokenizer, as transformers and vLLM load them.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from tokenizers import Tokenizer

from evals.base_model import corpus, sources
from evals.base_model.muon import MuonWithAdamW
from evals.base_model.pretrain import BatchSize, Schedule, train, weights_of
from evals.progress import Part, Progress
from infra.model.fim import END, MIDDLE, SPECIAL_TOKENS, Renderer
from infra.model.processor import faster_in_bf16, processor
from tasks.evaluation.heldout import read_source
from tasks.trainer.model.process_group import Parallel, start, stop
from tasks.trainer.model.trained_model import Optimization, TrainedModel

LAYOUT = Path(__file__).with_name("layout")
LENGTH = 256
TOKENIZER_FILES = 4000
"""Files that the tokenizer is trained on."""
BATCH = BatchSize(rows=12, micro_batch=6)
MAX_PREFIX_TOKENS, MAX_SUFFIX_TOKENS = 160, 48
MIDDLE_WEIGHT = 3.0
"""Loss weight of a token of the middle, beside 1 for any other."""
ROWS = "rows.npy"
SNAPSHOT_EVERY = 0.1
"""Share of the run between two snapshots of the checkpoint."""
REPORT_STEPS = 100
"""Steps between two lines of progress."""


@dataclass(frozen=True)
class Options:
    """Frozen options of the training."""

    tokens: int  # to train on
    minutes: float  # longest run; the schedule then ends with fewer tokens
    learning_rate: float  # peak
    seed: int  # of files, cursors and weights
    threads: int  # CPU threads of each process
    parent: Path | None  # checkpoint to continue from, with its tokenizer; choose another seed
    work: Path  # folder for rows and tokenizer
    out: Path  # folder to write


def architecture() -> dict[str, object]:
    """Return config.json of the base model."""
    return dict(json.loads((LAYOUT / "config.json").read_text()))


def prepare(files: list[Path], options: Options) -> None:
    """Write the tokenizer and the rows to the work folder."""
    if options.parent:
        tokenizer = Tokenizer.from_file(str(options.parent / "tokenizer.json"))
    else:
        texts = (read_source(file) or "" for file in files[:TOKENIZER_FILES])
        tokenizer = corpus.train_tokenizer(texts, int(str(architecture()["vocab_size"])))
    shutil.rmtree(options.work, ignore_errors=True)
    shutil.copytree(LAYOUT, options.work / "tokenizer")
    tokenizer.save(str(options.work / "tokenizer/tokenizer.json"))
    renderer = Renderer(tokenizer, "spm", MAX_PREFIX_TOKENS, MAX_SUFFIX_TOKENS)
    count = options.tokens // LENGTH + BATCH.rows
    corpus.write_rows(files, renderer, LENGTH, count, options.seed, options.work / ROWS)


class Reporter:
    """Shows the progress of training on rank 0, and saves snapshots of the checkpoint."""

    def __init__(self, progress: Progress, part: Part, save: Callable[[], None]) -> None:
        """Start the clock."""
        self._progress, self._part, self._save = progress, part, save
        self._start, self._steps, self._saved = time.monotonic(), 0, 0.0
        self.loss = 0.0
        """Exponential moving average of this rank's loss."""

    def __call__(self, tokens: int, loss: float, norm: float, progress: float) -> None:
        """Take the figures of a step; see pretrain.train."""
        self._steps += 1
        self.loss = loss if self._steps == 1 else 0.97 * self.loss + 0.03 * loss
        self._part.at(progress)
        if self._steps % REPORT_STEPS == 0:
            speed = tokens / (time.monotonic() - self._start)
            figures = f"loss {self.loss:.3f}  gradient {norm:.2f}  {speed:,.0f} tokens/s"
            self._progress.say(f"{tokens / 1e6:7.2f} M tokens  {figures}  {progress:.1%}")
        if progress - self._saved > SNAPSHOT_EVERY:
            self._save()
            self._saved = progress


def run(options: Options) -> None:
    """Prepare the data on the leading rank, train on all, and write the base model to its folder."""
    torch.set_num_threads(options.threads)
    began = time.monotonic()
    start(Parallel(), options.seed)
    lead = dist.get_rank() == 0
    with Progress(Console(quiet=not lead)) as progress:
        files = corpus.truncate(sources.training_files(), options.seed)
        if lead:
            progress.say(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")
            with progress.part("base: tokenizer and rows"):
                prepare(files, options)
        dist.barrier()
        rows = np.load(options.work / ROWS, mmap_mode="r")
        bf16 = faster_in_bf16(processor())
        model = TrainedModel(architecture(), Parallel(), Optimization(options.learning_rate, weight_decay=0.1, bf16=bf16))
        model.make_optimizer(MuonWithAdamW)
        if options.parent:
            model.load(options.parent)
        parameters = sum(p.numel() for p in model.megatron.parameters()) / 1e6
        prepared = f"{rows.size / 1e6:.1f} M tokens prepared, {parameters:.2f} M parameters"
        progress.say(f"{prepared}, {time.monotonic() - began:.0f} s")

        def save() -> None:
            model.save(options.out, torch.bfloat16, extras=options.work / "tokenizer")

        middle, end = SPECIAL_TOKENS.index(MIDDLE), SPECIAL_TOKENS.index(END)
        schedule = Schedule(options.learning_rate, options.tokens, options.minutes)
        with progress.part("base: training", 1.0) as part:
            reporter = Reporter(progress, part, save)
            tokens = train(model, rows, schedule, BATCH, lambda b: weights_of(b, middle, end, MIDDLE_WEIGHT), reporter)
        save()
        if lead:
            (options.out / "SOURCES.md").write_text(sources.document(files))
        progress.say(f"done: {tokens} tokens, loss {reporter.loss:.3f}, {time.monotonic() - began:.0f} s; wrote {options.out}")
    stop()
