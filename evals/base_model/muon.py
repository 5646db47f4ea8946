"""Muon for pretraining: orthogonalised momentum for the layers' matrices, AdamW for everything else, over float32 masters.

Jordan et al. 2024, "Muon"; Liu et al. 2025, "Muon is scalable for LLM training" (updates scaled to AdamW's size, so that both
share one learning rate). It needs whole matrices: tensor and pipeline parallelism are refused.
"""

from itertools import chain
from typing import Any

from tasks.trainer.model import process_setup  # noqa: F401  # before Megatron

# isort: split
import torch
from megatron.core import parallel_state
from torch.nn.utils import clip_grad_norm_


class MuonWithAdamW:
    """An optimizer with the interface of Megatron's, for a model whose gradients are in `main_grad`."""

    def __init__(self, model: Any, settings: Any) -> None:
        """Make a float32 master of every parameter (`main_param`), and two optimizers over the masters.

        `settings`: trained_model.Optimization. Raises ValueError where the model is split over processes.
        """
        if parallel_state.get_tensor_model_parallel_world_size() * parallel_state.get_pipeline_model_parallel_world_size() > 1:
            raise ValueError("Muon needs whole matrices; use data parallelism only, or Adam")
        self._max_norm, rate, decay = settings.max_grad_norm, settings.learning_rate, settings.weight_decay
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices, rest, vectors = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
        for name, parameter in model.named_parameters():
            parameter.main_param = torch.nn.Parameter(parameter.detach().float().clone())
            kind = vectors if parameter.ndim < 2 else rest if "embedding" in name or "output_layer" in name else matrices
            kind.append(parameter.main_param)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, rate, decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(
                [{"params": rest, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
                rate,
                betas=(settings.beta1, settings.beta2),
            ),
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of both optimizers; TrainedModel sets their learning rate."""
        return list(chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers))

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss unscaled."""
        return loss

    def zero_grad(self) -> None:
        """Do nothing: TrainedModel clears the model's gradient buffer."""

    @torch.no_grad()
    def step(self) -> tuple[bool, float, None]:
        """Clip and step unless the gradient is not finite; return whether it stepped, and the norm before clipping."""
        for parameter in self._parameters:
            parameter.main_param.grad = parameter.main_grad
        norm = clip_grad_norm_([parameter.main_param for parameter in self._parameters], self._max_norm)
        if not torch.isfinite(norm):
            return False, norm.item(), None
        for optimizer in self._optimizers:
            optimizer.step()
        for parameter in self._parameters:
            parameter.copy_(parameter.main_param)
        return True, norm.item(), None
