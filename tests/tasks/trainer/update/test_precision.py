"""Ranks that cannot compute together are refused by name."""

import re

import pytest

from tasks.trainer.update.precision import UnsuitablePrecision, check_ranks

A100, V100, CPU = ("a", True, True), ("b", True, False), ("c", False, True)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([A100, V100], "the GPU of rank 1 on b has no bfloat16; choose"),
        ([A100, CPU], "rank 0 on a bfloat16, rank 1 on c float32, expected one for all"),
    ],
)
def test_ranks_without_the_precision_or_with_two_are_refused(ranks: list[tuple[str, bool, bool]], expected: str) -> None:
    with pytest.raises(UnsuitablePrecision, match=re.escape(f'train.precision = "fastest": {expected}')):
        check_ranks("fastest", ranks)
    check_ranks("fastest", [ranks[0], ranks[0]])
