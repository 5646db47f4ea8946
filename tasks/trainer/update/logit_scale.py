"""The logits' scale as a trained parameter."""

import torch
import torch.distributed as dist


class LogitScale:
    """A factor e^s of all logits, the policy's sharpness, with s = 0 at the start of an update.

    It takes plain gradient steps, where Adam would move it as little as any other weight. The checkpoint gets it multiplied
    into the weights of the last norm.
    """

    def __init__(self, rate: float) -> None:
        """Start at s = 0; a learning rate of 0 keeps it there."""
        self._rate = rate
        self.log = torch.zeros((), device="cuda" if torch.cuda.is_available() else "cpu", requires_grad=rate > 0)
        """s, a scalar."""

    def step(self, tokens: float) -> None:
        """Step along the gradient that all ranks accumulated since the last step, of the loss summed over `tokens`."""
        gradient = torch.zeros_like(self.log) if self.log.grad is None else self.log.grad
        # Data-parallel ranks hold the parts of their samples, tensor-parallel ranks those of their logits.
        dist.all_reduce(gradient)
        with torch.no_grad():
            self.log -= self._rate * gradient / tokens
        self.drop_gradient()

    def drop_gradient(self) -> None:
        """Discard the accumulated gradient."""
        self.log.grad = None

    @property
    def factor(self) -> float:
        """e^s."""
        return float(self.log.detach().exp())
