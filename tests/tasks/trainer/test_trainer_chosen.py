"""The last layer at chosen positions: what is answered there is what all positions' answer holds there."""

from types import SimpleNamespace

from tasks.trainer import shim

shim.install()

import pytest  # noqa: E402
import torch  # noqa: E402

from tasks.trainer.attention import SDPACoreAttention  # noqa: E402
from tasks.trainer.chosen import Chosen  # noqa: E402

TIMES, ROWS, HEADS, GROUPS, WIDTH = 12, 3, 4, 2, 8
AT = {0: (3, 7, 11), 1: (), 2: (0,)}
"""Positions by row: several, none, and one that sees only itself."""


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_chosen_positions_are_answered_and_taught_as_among_all(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    core = SDPACoreAttention(SimpleNamespace(attention_dropout=0.0, context_parallel_size=1), 1)
    given = [torch.randn(TIMES, ROWS, heads, WIDTH, dtype=dtype).requires_grad_() for heads in (HEADS, GROUPS, GROUPS)]
    at = torch.tensor([time * ROWS + row for row, times in AT.items() for time in times])
    among_all = core(*given).flatten(0, 1)[at][:, None]
    weights = torch.randn_like(among_all)
    expected = torch.autograd.grad((among_all * weights).sum(), given)
    core.chosen = Chosen.of(at, ROWS, torch.device("cpu"))
    alone = core(*given)
    assert alone.shape == (len(at), 1, HEADS * WIDTH)
    torch.testing.assert_close(alone, among_all, rtol=tolerance, atol=tolerance)
    for found, wanted in zip(torch.autograd.grad((alone * weights).sum(), given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
