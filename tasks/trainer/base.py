"""The small base model, from sources that every installation has: tokenizer, data, training, export.

torchrun --standalone --nproc_per_node 2 -m tasks.trainer.base --tokens 16000000 --threads 1 --out infra/base_model
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer

from evals.heldout import read_source, training_files
from infra.fim import END, MIDDLE, PAD, SPECIAL_TOKENS, Renderer
from tasks.trainer import sources
from tasks.trainer.model import matmul
from tasks.trainer.model.engine import TrainedModel, Optimization, Parallel, start, stop
from tasks.trainer.pretraining import corpus
from tasks.trainer.pretraining.pretrain import Schedule, train, weights_of

VOCABULARY, LENGTH = 4096, 256
TOKENIZER_FILES = 4000
BATCH, MICRO_BATCH = 12, 6
MAX_PREFIX_TOKENS, MAX_SUFFIX_TOKENS = 160, 48
MIDDLE_WEIGHT = 3.0
ROWS = "rows.npy"
SNAPSHOT_EVERY = 0.1


def architecture() -> dict[str, object]:
    """config.json of the base model."""
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


def prepare(files: list[Path], arguments: argparse.Namespace) -> None:
    """Write the tokenizer and the rows to the work folder."""
    if arguments.parent:
        tokenizer = Tokenizer.from_file(str(arguments.parent / "tokenizer.json"))
    else:
        tokenizer = corpus.train_tokenizer((read_source(file) or "" for file in files[:TOKENIZER_FILES]), VOCABULARY)
    shutil.rmtree(arguments.work, ignore_errors=True)
    save_tokenizer(tokenizer, arguments.work / "tokenizer")
    renderer = Renderer(tokenizer, "spm", MAX_PREFIX_TOKENS, MAX_SUFFIX_TOKENS)
    count = arguments.tokens // LENGTH + BATCH
    corpus.write_rows(files, renderer, LENGTH, count, arguments.seed, arguments.work / ROWS)


def main() -> None:
    """Train the base model and write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16_000_000, help="tokens to train on")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end the schedule by then, with what was seen so far")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--parent", type=Path, help="go on from this checkpoint and its tokenizer; give another --seed for other rows"
    )
    parser.add_argument("--work", type=Path, default=Path("var/base"), help="folder for rows and the tokenizer")
    parser.add_argument("--out", type=Path, default=Path("infra/base_model"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    began = time.monotonic()

    start(Parallel(), arguments.seed)
    lead = dist.get_rank() == 0
    files = corpus.truncate(training_files(), arguments.seed)
    if lead:
        print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB", flush=True)
        prepare(files, arguments)
    dist.barrier()
    rows = np.load(arguments.work / ROWS, mmap_mode="r")
    precise = Optimization(
        arguments.learning_rate, optimizer="muon", weight_decay=0.1, bf16=matmul.faster_in_bf16(matmul.processor())
    )
    engine = TrainedModel(architecture(), Parallel(), precise)
    engine.make_optimizer()
    if arguments.parent:
        engine.load(arguments.parent)
    if lead:
        parameters = sum(p.numel() for p in engine.model.parameters())
        print(
            f"{rows.size / 1e6:.1f} M tokens prepared, {parameters / 1e6:.2f} M parameters, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    middle, end = SPECIAL_TOKENS.index(MIDDLE), SPECIAL_TOKENS.index(END)
    state = {"step": 0, "saved": 0.0, "loss": 0.0}
    training = time.monotonic()

    def report(seen: int, loss: float, norm: float, progress: float) -> None:
        state["step"] += 1
        state["loss"] = loss if state["step"] == 1 else 0.97 * state["loss"] + 0.03 * loss
        if lead and state["step"] % 100 == 0:
            speed = seen / (time.monotonic() - training)
            print(
                f"{seen / 1e6:7.2f} M tokens  loss {state['loss']:.3f}  gradient {norm:.2f}  "
                f"{speed:,.0f} tokens/s  {progress:.1%}",
                flush=True,
            )
        if progress - state["saved"] > SNAPSHOT_EVERY:
            engine.save(arguments.out, torch.bfloat16, extras=arguments.work / "tokenizer")
            state["saved"] = progress

    seen = train(
        engine,
        rows,
        Schedule(arguments.learning_rate, arguments.tokens, arguments.minutes),
        BATCH,
        MICRO_BATCH,
        lambda tokens: weights_of(tokens, middle, end, MIDDLE_WEIGHT),
        report,
    )
    engine.save(arguments.out, torch.bfloat16, extras=arguments.work / "tokenizer")
    if lead:
        (arguments.out / "SOURCES.md").write_text(sources.document(files))
        print(
            f"done: {seen} tokens, loss {state['loss']:.3f}, {time.monotonic() - began:.0f} s; wrote {arguments.out}", flush=True
        )
    stop()


if __name__ == "__main__":
    main()
