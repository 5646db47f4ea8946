"""Tiny random models, and their exact log-probabilities computed by transformers."""

import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.serving import fakes


def write_model(
    path: Path, seed: int, hidden: int = 128, tokenizer: Path | None = None, family: str = "qwen2", **changes: object
) -> Path:
    """Write a random model with a checkpoint's tokenizer; `changes` override its configuration.

    Without one, it gets the tokenizer of the fakes. transformers misreads it, so it serves tests that exchange token ids only.
    """
    path.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        bpe = fakes.tokenizer()
        PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>").save_pretrained(path)
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, path / name)
        bpe = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    torch.manual_seed(seed)
    values = {
        "vocab_size": bpe.get_vocab_size(),
        "hidden_size": hidden,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,  # a random model would end at random
        "initializer_range": 0.1,
    }
    config = AutoConfig.for_model(family, **values | changes)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def logprobs(path: Path, prompt: list[int], tokens: list[int], temperature: float) -> list[float]:
    """Return the log-probability of each token after the prompt and the tokens before it."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
