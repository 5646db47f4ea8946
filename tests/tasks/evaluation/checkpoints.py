"""Random models with the architecture and the tokenizer type of the real model."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2Config, Qwen2ForCausalLM

from infra.model.fim import SPECIAL_TOKENS


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint in Hugging Face layout and return its folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["def name(a, b):\n    return a + b\n"] * 4, trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    shape: dict[str, Any] = dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    config = Qwen2Config(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, initializer_range=0.3, **shape)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
