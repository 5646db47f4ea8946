"""Fewer bits of the mantissa: to the nearest, ties to the even, and never of what has fewer already."""

import torch

from tasks.trainer.model.rounding import round_mantissa


def test_weights_are_rounded_to_the_nearest_and_ties_to_the_even() -> None:
    torch.manual_seed(0)
    weights = torch.cat([torch.randn(10_000) * 10.0 ** torch.randint(-30, 30, (10_000,)), torch.zeros(1), -torch.zeros(1)])
    for bits in (8, 15, 22):
        rounded = round_mantissa(weights, bits)
        assert ((rounded - weights).abs() <= weights.abs() * 2.0 ** -(bits + 1)).all()
        assert not (rounded.view(torch.int32) & ((1 << (23 - bits)) - 1)).any()
        assert torch.equal(round_mantissa(rounded, bits), rounded) and torch.equal(round_mantissa(-weights, bits), -rounded)
    step = 2.0**-15
    ties = torch.tensor([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2, 2 - step / 2])
    assert round_mantissa(ties, 15).tolist() == [1, 1 + 2 * step, -1, 2]


def test_what_has_fewer_bits_or_no_value_stays() -> None:
    weights = torch.randn(1000).to(torch.bfloat16)
    assert torch.equal(round_mantissa(weights.float(), 15), weights.float()) and round_mantissa(weights, 15) is weights
    assert round_mantissa(weights.float(), 23).equal(weights.float())
    infinite = round_mantissa(torch.tensor([torch.inf, -torch.inf, torch.nan]), 15)
    assert infinite[:2].tolist() == [torch.inf, -torch.inf] and infinite[2].isnan()
