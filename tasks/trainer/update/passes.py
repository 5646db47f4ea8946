"""The last pass of a part: which written texts it leaves out. Pure.

Few texts move the weights: most are far from anything that the model could write, or are written by it anyway. Of simulated
developers' lines a fifth has nine tenths of the squared gradients (infra/docs/measurements-history.md). So a last pass takes the
texts with the largest gradients in the pass before (after Jiang et al. 2019, "Accelerating deep learning by focusing on the
biggest losers"). They keep their weights, and the loss stays a mean over all texts of a step. So nobody weighs more
than in a whole pass, though a user's part of the texts that stay may be larger than the share (infra/docs/how/caps.md).
"""

import math
from collections.abc import Mapping, Sequence

from infra.records import Sample


def whole_steps(steps: int, epochs: float) -> int:
    """Return the number of the steps that belong to whole passes, of `steps` in all passes."""
    return steps * math.floor(epochs) // math.ceil(epochs)


def left_out(
    samples: Sequence[Sample], places: Sequence[Sequence[int]], norms: Mapping[int, float], epochs: float
) -> frozenset[int]:
    """Return the indices of the samples that the last pass leaves out; none where it is a whole one.

    Args:
        places: indices of the samples of each place. Those with drawn or served actions stay.
        norms: norm of each text's gradient in its latest step, by the sample's index; a text without one stays.
        epochs: passes.
    """
    written = [place for place in places if not any(samples[i].token_ids for i in place)]
    texts = sorted((i for place in written for i in place if i in norms), key=lambda i: (-norms[i], i))
    return frozenset(texts[math.ceil(len(texts) * (epochs % 1)) :]) if epochs % 1 else frozenset()
