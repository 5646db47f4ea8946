"""One Megatron model with its optimizer: built from a Hugging Face configuration, stepped over micro-batches, saved."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.trainer.model import process_setup  # noqa: F401  # before Megatron

# isort: split
import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module

from infra.model.adapter_files import merged, read_adapter, write_adapter
from infra.model.architectures import parse
from infra.model.probe import FILE as PROBE
from infra.model.probe import Probe
from infra.model.stored_tensors import StoredTensors, weights_of, write_checkpoint, written
from tasks.trainer.model.adapter import NewAdapter, attach
from tasks.trainer.model.architecture import Recompute, check_arguments, configured, gpt_model, transformer_config
from tasks.trainer.model.convert import freeze, gather_on_rank_0, interpolate, load_weights, trained_master
from tasks.trainer.model.pace import Pace
from tasks.trainer.model.parts import PARTS, parts_of
from tasks.trainer.model.process_group import Parallel
from tasks.trainer.model.rounding import FLOAT32_MANTISSA, round_mantissa

LAST_NORM = "model.norm.weight"
ForwardStep = Callable[[Iterator[Any], Any], tuple[torch.Tensor, Callable[..., Any]]]


@dataclass(frozen=True)
class Optimization:
    """The optimizer and its precision."""

    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    bf16: bool = False
    """Whether matrix products are computed in bfloat16, over float32 masters."""
    frozen_layers: int = 0
    """Lowest layers to freeze, with the embeddings; 0: everything is trained."""
    adapter_rank: int = 0
    """Rank of the adapter that is trained in place of the weights; 0: the weights are trained."""
    adapter_seed: str = ""
    """Text from which the adapter's first values are drawn."""
    distributed: bool = False
    """Whether data-parallel ranks share the masters and Adam's state (Megatron's distributed optimizer)."""


class TrainedModel:
    """A model that computes losses over micro-batches and takes optimizer steps."""

    def __init__(
        self,
        config: dict[str, Any],
        parallel: Parallel,
        optimization: Optimization,
        megatron_arguments: Mapping[str, Any] = MappingProxyType({}),
        recompute: Recompute = "none",
        share_of_time: float = 1.0,
    ) -> None:
        """Build the model with random weights.

        Args:
            config: Hugging Face's config.json.
            megatron_arguments: more arguments of Megatron's TransformerConfig and OptimizerConfig.
            recompute: activations that the backward pass recomputes.
            share_of_time: most of the time that passes over micro-batches may compute, above 0 and at most 1.

        Raises:
            UnsupportedCheckpoint: the trainer lacks the configuration's layers.
            ValueError: a pipeline stage has nothing left to train, or Megatron does not take an argument.
        """
        check_arguments(megatron_arguments)
        self.hf_config = config
        self.architecture = parse(config, "the model")
        init_std = config.get("initializer_range", 0.02)
        self.config = transformer_config(self.architecture, parallel, optimization.bf16, recompute, megatron_arguments, init_std)
        model: Any = gpt_model(self.architecture, self.config)
        if optimization.adapter_rank:
            attach(model, self.architecture, optimization.adapter_rank, optimization.frozen_layers)
        else:
            freeze(model, optimization.frozen_layers)
        if torch.cuda.is_available():
            model = model.cuda()
        wrapped = Float16Module(self.config, model) if optimization.bf16 else model
        # `gradient_is_finite` checks gradients before the step: Megatron's own check ends the process, and the other ranks hang.
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, check_for_nan_in_grad=False, use_distributed_optimizer=optimization.distributed
        )
        self.megatron = DistributedDataParallel(self.config, ddp, wrapped)
        """Megatron's model of this rank, wrapped for data parallelism."""
        self.config.finalize_model_grads_func = finalize_model_grads
        self._optimization = optimization
        self._megatron_arguments = megatron_arguments
        self._pace = Pace(share_of_time)
        self._loaded: Path | None = None
        self._start: Mapping[str, torch.Tensor] = {}
        self.optimizer: Any = None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.megatron.parameters()).device

    def load(self, directory: Path, adapter: Path | None = None) -> None:
        """Load weights in Hugging Face layout, from one or more safetensors files, into the float32 masters too.

        Args:
            adapter: folder of an adapter of these weights, to train on; none: it begins anew.

        Raises:
            UnsuitableAdapter: the adapter is damaged, or belongs to other weights.
        """
        options, self._start = self._optimization, StoredTensors(weights_of(directory))
        load_weights(self.megatron, self._start)
        if options.adapter_rank:
            new = NewAdapter(self.architecture, options.adapter_rank, options.frozen_layers, options.adapter_seed)
            self._start = read_adapter(adapter, directory)[0] if adapter else new
            load_weights(self.megatron, self._start, partly=True)
        self._loaded = directory

    def make_optimizer(self, make: Callable[[Any, Optimization], Any] | None = None) -> None:
        """Make the optimizer, by default Megatron's Adam.

        Load weights after it: its float32 masters start as copies of the model's own, rounded, weights.
        """
        self.megatron.broadcast_params()
        options = self._optimization
        for parameter in self.megatron.parameters():
            if options.bf16 and not options.adapter_rank and not parameter.requires_grad:
                parameter.main_param = parameter.detach().float()  # so that frozen weights are saved unrounded too
        if make:
            self.optimizer = make(self.megatron, options)
            return
        config = configured(
            OptimizerConfig,
            self._megatron_arguments,
            optimizer="adam",
            lr=options.learning_rate,
            min_lr=0.0,
            weight_decay=options.weight_decay,
            adam_beta1=options.beta1,
            adam_beta2=options.beta2,
            adam_eps=1e-8,
            clip_grad=options.max_grad_norm,
            bf16=options.bf16,
            params_dtype=self.config.params_dtype,
            use_distributed_optimizer=options.distributed,
        )
        self.optimizer = get_megatron_optimizer(config, [self.megatron], use_gloo_process_groups=False)
        if options.distributed:
            (sharing,) = self.optimizer.chained_optimizers
            for parameter, parts in parts_of(sharing):
                setattr(parameter, PARTS, parts)
        self.config.grad_scale_func = self.optimizer.scale_loss

    def run(self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int], *, forward_only: bool) -> list[Any]:
        """Pass once over the micro-batches; return the loss reports, on the last pipeline stage.

        Args:
            shape: (samples, tokens) of the largest micro-batch.
        """
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=self._pace.paced(batches),
            model=self.megatron,
            num_microbatches=len(batches),
            micro_batch_size=shape[0],
            seq_length=shape[1],
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def accumulate(self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
        """Compute the gradient over the micro-batches, without a step; return the loss reports, on the last pipeline stage.

        The loss function returns (sum of the loss, number of tokens, report). Gradients are divided by the tokens of all
        micro-batches and data-parallel ranks.
        """
        self.megatron.zero_grad_buffer()
        self.optimizer.zero_grad()
        return self.run(forward_step, batches, shape, forward_only=False)

    def gradient_is_finite(self) -> bool:
        """Return whether every element of the gradient is a finite number, on all ranks."""
        # Minimum and maximum are NaN where an element is; isfinite() would copy the gradient and take ten times as long.
        extremes = [extreme for buffer in self.megatron.buffers for extreme in torch.aminmax(buffer.grad_data)]
        finite = torch.stack(extremes).isfinite().all().int()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    def apply(self, lr: float) -> float:
        """Take one optimizer step along the accumulated gradient; return the gradient's norm before clipping.

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if not self.gradient_is_finite() or not (result := self.optimizer.step())[0]:
            raise FloatingPointError("optimizer: the gradient is not finite, the step was not taken; lower the learning rate")
        return float(result[1])

    def step(
        self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int], lr: float
    ) -> tuple[list[Any], float]:
        """`accumulate` and `apply`; return the loss reports, and the gradient's norm before clipping."""
        reports = self.accumulate(forward_step, batches, shape)
        return reports, self.apply(lr)

    def interpolate(self, share: float) -> None:
        """Move the trained weights, or the adapter's, to a share of the way from those that were loaded to themselves."""
        interpolate(self.megatron, self._start, share)

    def save(
        self,
        directory: Path,
        dtype: torch.dtype,
        extras: Path | None = None,
        logit_scale: float = 1.0,
        mantissa: int = FLOAT32_MANTISSA,
    ) -> None:
        """Write the checkpoint atomically, from the float32 masters where there are any.

        With an adapter: the weights that were loaded, from their files, with the adapter merged into them.

        Args:
            extras: folder whose tokenizer files are copied.
            logit_scale: factor of all logits; it is multiplied into the weights of the last norm.
            mantissa: bits of the mantissa that float32 weights keep; 23 keeps all, as do weights with an adapter, which do not
                travel.
        """
        rank = self._optimization.adapter_rank
        kept = FLOAT32_MANTISSA if rank else mantissa

        def stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return round_mantissa(tensor * logit_scale if name == LAST_NORM else tensor, kept)

        weights = self._adapter() if rank else gather_on_rank_0(self.megatron, dtype, stored)
        if dist.get_rank() != 0:
            return
        if rank:
            base = StoredTensors(weights_of(self._base()))
            whole = merged(base, self.architecture, weights, rank)
            weights = {name: stored(name, tensor).to(dtype) for name, tensor in whole}
        with written(directory) as partial:
            write_checkpoint(partial, weights, self.hf_config, dtype, extras)

    def save_adapter(self, directory: Path, probe: Probe | None = None) -> None:
        """Write the adapter alone, atomically, in the files of `peft`, and its probe; every rank calls it."""
        options, tensors = self._optimization, self._adapter()
        if dist.get_rank() == 0:
            with written(directory) as partial:
                write_adapter(partial, tensors, self.architecture, options.adapter_rank, options.frozen_layers, self._base())
                if probe:
                    (partial / PROBE).write_text(probe.model_dump_json())

    def _adapter(self) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors on rank 0."""
        return gather_on_rank_0(self.megatron, torch.float32, tensor_of=trained_master)

    def _base(self) -> Path:
        assert self._loaded is not None, "an adapter belongs to weights that were loaded"
        return self._loaded
