"""Trains the small base model on Python sources that every installation has: tokenizer, data, training, export.

torchrun --standalone --nproc_per_node 2 -m infra.cli base train --tokens 16000000 --threads 1
"""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from tokenizers import Tokenizer

from evals.base_model import corpus, sources
from evals.base_model.files import training_files
from evals.base_model.muon import MuonWithAdamW
from evals.base_model.pretrain import BatchSize, Schedule, train, weights_of
from evals.progress import Part, Progress
from infra.model.fim import END, MIDDLE, PAD, SPECIAL_TOKENS, Renderer
from tasks.evaluation.heldout import read_source
from tasks.trainer.model import matmul
from tasks.trainer.model.process_group import Parallel, start, stop
from tasks.trainer.model.trained_model import Optimization, TrainedModel

VOCABULARY, LENGTH = 4096, 256
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


def architecture() -> dict[str, object]:
    """Return config.json of the base model."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 4,
    }


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the tokenizer as transformers and vLLM load it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in (END, PAD)],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 4}, indent=2))


@dataclass(frozen=True)
class Options:
    """Frozen options of the training."""

    tokens: int
    """Tokens to train on."""
    minutes: float
    """Longest run; the schedule then ends with fewer tokens."""
    learning_rate: float
    """Peak learning rate."""
    seed: int
    """Of files, cursors and weights."""
    threads: int
    """CPU threads of each process."""
    parent: Path | None
    """Checkpoint to continue from, with its tokenizer; choose another seed."""
    work: Path
    """Folder for rows and tokenizer."""
    out: Path
    """Folder to write."""


def prepare(files: list[Path], options: Options) -> None:
    """Write the tokenizer and the rows to the work folder."""
    if options.parent:
        tokenizer = Tokenizer.from_file(str(options.parent / "tokenizer.json"))
    else:
        tokenizer = corpus.train_tokenizer((read_source(file) or "" for file in files[:TOKENIZER_FILES]), VOCABULARY)
    shutil.rmtree(options.work, ignore_errors=True)
    save_tokenizer(tokenizer, options.work / "tokenizer")
    renderer = Renderer(tokenizer, "spm", MAX_PREFIX_TOKENS, MAX_SUFFIX_TOKENS)
    count = options.tokens // LENGTH + BATCH.rows
    corpus.write_rows(files, renderer, LENGTH, count, options.seed, options.work / ROWS)


class Reporter:
    """Prints the progress of training on rank 0, and saves snapshots of the checkpoint."""

    def __init__(self, model: TrainedModel, options: Options, progress: Progress, part: Part) -> None:
        """Start the clock."""
        self._model, self._options, self._progress, self._part = model, options, progress, part
        self._start, self._steps, self._saved = time.monotonic(), 0, 0.0
        self.loss = 0.0
        """Exponential moving average of this rank's loss."""

    def __call__(self, tokens: int, loss: float, norm: float, progress: float) -> None:
        """Take the figures of a step; see pretrain.train."""
        self._steps += 1
        self.loss = loss if self._steps == 1 else 0.97 * self.loss + 0.03 * loss
        if dist.get_rank() == 0:
            self._part.at(progress)
            if self._steps % REPORT_STEPS == 0:
                speed = tokens / (time.monotonic() - self._start)
                figures = f"loss {self.loss:.3f}  gradient {norm:.2f}  {speed:,.0f} tokens/s"
                self._progress.say(f"{tokens / 1e6:7.2f} M tokens  {figures}  {progress:.1%}")
        if progress - self._saved > SNAPSHOT_EVERY:
            save(self._model, self._options)
            self._saved = progress


def save(model: TrainedModel, options: Options) -> None:
    """Write the checkpoint and the tokenizer to --out."""
    model.save(options.out, torch.bfloat16, extras=options.work / "tokenizer")


def run(options: Options) -> None:
    """Train the base model and write it to its folder."""
    torch.set_num_threads(options.threads)
    start_time = time.monotonic()

    start(Parallel(), options.seed)
    lead = dist.get_rank() == 0
    with Progress(Console(quiet=not lead)) as progress:
        make_base(options, start_time, lead, progress)
    stop()


def make_base(options: Options, start_time: float, lead: bool, progress: Progress) -> None:
    """Prepare the data on the leading rank, then train on all, and show the progress."""
    files = corpus.truncate(training_files(), options.seed)
    if lead:
        progress.say(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")
        with progress.part("base: tokenizer and rows"):
            prepare(files, options)
    dist.barrier()
    rows = np.load(options.work / ROWS, mmap_mode="r")
    bf16 = matmul.faster_in_bf16(matmul.processor())
    optimization = Optimization(options.learning_rate, weight_decay=0.1, bf16=bf16)
    model = TrainedModel(architecture(), Parallel(), optimization)
    model.make_optimizer(MuonWithAdamW)
    if options.parent:
        model.load(options.parent)
    parameters = sum(p.numel() for p in model.megatron.parameters()) / 1e6
    seconds = time.monotonic() - start_time
    progress.say(f"{rows.size / 1e6:.1f} M tokens prepared, {parameters:.2f} M parameters, {seconds:.0f} s")
    middle, end = SPECIAL_TOKENS.index(MIDDLE), SPECIAL_TOKENS.index(END)
    with progress.part("base: training", 1.0) as part:
        reporter = Reporter(model, options, progress, part)
        tokens = train(
            model,
            rows,
            Schedule(options.learning_rate, options.tokens, options.minutes),
            BATCH,
            lambda batch: weights_of(batch, middle, end, MIDDLE_WEIGHT),
            reporter,
        )
    save(model, options)
    if lead:
        (options.out / "SOURCES.md").write_text(sources.document(files))
    seconds = time.monotonic() - start_time
    progress.say(f"done: {tokens} tokens, loss {reporter.loss:.3f}, {seconds:.0f} s; wrote {options.out}")
