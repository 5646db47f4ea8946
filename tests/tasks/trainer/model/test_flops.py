"""Operations of a step equal values computed by hand."""

import torch

from tasks.trainer.model.flops import of_step, peak

CONFIG = {
    "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16,
    "vocab_size": 32, "tie_word_embeddings": True,
}  # fmt: skip


def test_operations_of_a_step_equal_values_computed_by_hand():
    # 10 tokens, logits at 3. Multiply-adds a token: projections into attention 8 x 2 x (4 + 2 + 2) = 128, out of it 64, MLP 384.
    first = 2 * 10 * (128 + 64 + 384) + 2 * 10 * 10 * 4 * 2
    last = 2 * 10 * 128 + 2 * 3 * (64 + 384) + 2 * 3 * 10 * 4 * 2
    output = 2 * 3 * 8 * 32
    assert of_step(CONFIG, [(10, 3)], 0) == 3 * (first + last + output)
    assert of_step(CONFIG, [(10, 3)] * 2, 1) == 2 * (first + 3 * last + 2 * output)


def test_weights_with_an_adapter_have_no_gradient():
    products = 2 * 10 * (128 + 64 + 384) + 2 * 10 * 128 + 2 * 3 * (64 + 384) + 2 * 3 * 8 * 32
    scores = 2 * 10 * 10 * 4 * 2 + 2 * 3 * 10 * 4 * 2
    # Both sides of each layer: queries 8 + 8, keys and values 8 + 4 each; output 8 + 8, the MLP's three 8 + 16 each.
    added = 2 * 5 * (10 * 40 + 10 * 88 + 10 * 40 + 3 * 88)
    assert of_step(CONFIG, [(10, 3)], 0, adapter_rank=5) == 2 * products + 3 * (scores + added)


def test_a_processors_peak_is_plausible():
    assert peak(torch.float32) > 1e8
