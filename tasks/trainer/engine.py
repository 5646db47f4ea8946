"""One Megatron model with its optimizer: built from a Hugging Face Qwen2 configuration, stepped over micro-batches, saved."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tasks.trainer import products, shim

shim.install()
PRODUCTS = products.install(products.processor())
"""Kept, since they are in force for as long as it is."""

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from tasks.trainer.attention import SDPACoreAttention  # noqa: E402
from tasks.trainer.convert import Stored, collected, freeze, load_weights  # noqa: E402
from tasks.trainer.elementwise import RMSNorm, SwiGLU  # noqa: E402
from tasks.trainer.muon import MuonWithAdamW  # noqa: E402

WEIGHTS = "model.safetensors"
LAST_NORM = "model.norm.weight"
ForwardStep = Callable[[Iterator[Any], Any], tuple[torch.Tensor, Callable[..., Any]]]


@dataclass(frozen=True)
class Parallel:
    """How the processes are laid out; what is left over is data-parallel."""

    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True)
class Optimization:
    """The optimizer and its precision."""

    learning_rate: float
    optimizer: Literal["adam", "muon"] = "adam"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    bf16: bool = False
    frozen_layers: int = 0
    """Lowest layers, and the embeddings with them, that stay as they are; 0: everything is trained."""


def start(parallel: Parallel, seed: int) -> None:
    """Join the process group that torchrun describes (one process by itself where it does not)."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if os.environ["WORLD_SIZE"] == "1" else {}
        dist.init_process_group(backend, **alone)
    parallel_state.initialize_model_parallel(parallel.tensor, parallel.pipeline)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def stop() -> None:
    """Leave the process group."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


class Engine:
    """A model that computes losses over micro-batches and takes optimizer steps."""

    def __init__(self, config: dict[str, Any], parallel: Parallel, optimization: Optimization) -> None:
        """Build the model with random weights.

        Args:
            config: Hugging Face's config.json of a Qwen2 model.

        Raises:
            ValueError: a pipeline stage has nothing left to train, or the rotary embedding is not a plain one.
        """
        self.hf_config = config
        self.config = _transformer_config(config, parallel, optimization.bf16)
        model: Any = _model(config, self.config)
        freeze(model, optimization.frozen_layers)
        if torch.cuda.is_available():
            model = model.cuda()
        wrapped = Float16Module(self.config, model) if optimization.bf16 else model
        # Gradients are looked at before the step (`finite`): Megatron's own check ends the process, and the other ranks wait.
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, check_for_nan_in_grad=False)
        self.model = DistributedDataParallel(self.config, ddp, wrapped)
        self.config.finalize_model_grads_func = finalize_model_grads
        self._optimization = optimization
        self.optimizer: Any = None

    def load(self, directory: Path) -> None:
        """Load weights in Hugging Face layout (one safetensors file or several), into the float32 masters too."""
        weights = Stored(sorted(directory.glob("*.safetensors")))
        if not weights:
            raise ValueError(f"{directory}: no *.safetensors; expected a checkpoint in Hugging Face layout")
        load_weights(self.model, weights)

    def make_optimizer(self) -> None:
        """Make the optimizer. Load weights after it: its float32 masters start as copies of the model's own, rounded, weights."""
        self.model.broadcast_params()
        settings = self._optimization
        for parameter in self.model.parameters():
            if settings.bf16 and not parameter.requires_grad:
                parameter.main_param = parameter.detach().float()  # what is not trained is saved unrounded too
        if settings.optimizer == "muon":
            self.optimizer = MuonWithAdamW(self.model, settings)
            return
        config = OptimizerConfig(
            optimizer="adam",
            lr=settings.learning_rate,
            min_lr=0.0,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.beta1,
            adam_beta2=settings.beta2,
            adam_eps=1e-8,
            clip_grad=settings.max_grad_norm,
            bf16=settings.bf16,
            params_dtype=self.config.params_dtype,
        )
        self.optimizer = get_megatron_optimizer(config, [self.model])
        self.config.grad_scale_func = self.optimizer.scale_loss

    def run(self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int], *, forward_only: bool) -> list[Any]:
        """One pass over micro-batches; gives back what the loss function reports, on the last pipeline stage.

        Args:
            shape: (samples, tokens) of the largest micro-batch.
        """
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=self.model,
            num_microbatches=len(batches),
            micro_batch_size=shape[0],
            seq_length=shape[1],
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def accumulate(self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
        """The gradient over micro-batches, without a step; gives back the loss reports, on the last pipeline stage.

        The loss function returns (sum of the loss, number of tokens, report): gradients are divided by the tokens of all
        micro-batches and data-parallel ranks.
        """
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        return self.run(forward_step, batches, shape, forward_only=False)

    def finite(self) -> bool:
        """Whether every element of the gradient is a number, on all ranks."""
        # Both ends are NaN where one element is; isfinite() would write a copy of the gradient, ten times as long.
        ends = [end for buffer in self.model.buffers for end in torch.aminmax(buffer.grad_data)]
        answer = torch.stack(ends).isfinite().all().int()
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        return bool(answer)

    def apply(self, lr: float) -> float:
        """One optimizer step along the accumulated gradient; gives back its norm before clipping.

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if not self.finite() or not (taken := self.optimizer.step())[0]:
            raise FloatingPointError("optimizer: the gradient is not finite, the step was not taken; lower the learning rate")
        return float(taken[1])

    def step(
        self, forward_step: ForwardStep, batches: Sequence[Any], shape: tuple[int, int], lr: float
    ) -> tuple[list[Any], float]:
        """`accumulate` and `apply`: the loss reports, and the gradient's norm before clipping."""
        reports = self.accumulate(forward_step, batches, shape)
        return reports, self.apply(lr)

    def save(self, directory: Path, dtype: torch.dtype, extras: Path | None = None, logit_scale: float = 1.0) -> None:
        """Write the checkpoint (the masters, where there are any), whole or not at all.

        Args:
            extras: folder that the tokenizer's files are copied from.
            logit_scale: what all logits are to be multiplied by; goes into the weights of the last norm.
        """
        weights = collected(self.model, dtype)
        if dist.get_rank() != 0:
            return
        weights[LAST_NORM] *= logit_scale
        partial = directory.with_name(directory.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        config = self.hf_config | {"dtype": str(dtype).removeprefix("torch."), "torch_dtype": str(dtype).removeprefix("torch.")}
        (partial / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
        for file in sorted(extras.iterdir()) if extras else []:
            other = file.suffix == ".json" and not file.name.endswith(".index.json")  # an index names files of the base's weights
            if file.is_file() and other and not (partial / file.name).exists():
                shutil.copy(file, partial / file.name)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)


def _transformer_config(config: dict[str, Any], parallel: Parallel, bf16: bool) -> TransformerConfig:
    dtype = torch.bfloat16 if bf16 else torch.float32
    return TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=config.get("initializer_range", 0.02),
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        bf16=bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        calculate_per_token_loss=True,
        variable_seq_lengths=parallel.pipeline > 1,
        moe_token_dispatcher_type="alltoall",  # asked for by variable lengths over a pipeline, in dense models too
        batch_p2p_comm=True,
        deallocate_pipeline_outputs=parallel.pipeline > 1,
        use_cpu_initialization=not torch.cuda.is_available(),
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        use_te_activation_func=True,  # the spec's, which is SwiGLU
    )


def _layer_spec(rope_theta: float) -> ModuleSpec:
    """The layers, on any device: the one place where Transformer Engine's would be chosen.

    Raises:
        NotImplementedError: it is installed, so that Megatron would take its optimizer too.
    """
    if find_spec("transformer_engine"):
        raise NotImplementedError(
            "transformer_engine is installed: the trainer is not built for its layers and its optimizer, expected an environment "
            "without it; pip uninstall transformer-engine"
        )
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    attention = ModuleSpec(SDPACoreAttention, params={"rope_theta": rope_theta})
    spec.submodules.self_attention.submodules.core_attention = attention
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RMSNorm
    spec.submodules.mlp.submodules.activation_func = SwiGLU
    return spec


def _rope_theta(config: dict[str, Any]) -> float:
    """Base of the rotary embedding.

    Raises:
        ValueError: the embedding is stretched for longer contexts, as YaRN does.
    """
    rope = config.get("rope_parameters") or config | (config.get("rope_scaling") or {})
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise ValueError(
            f"config.json: rope_type = {kind!r}, expected 'default': the trainer is built for no other; take its base"
        )
    return float(rope["rope_theta"])


def _model(config: dict[str, Any], transformer: TransformerConfig) -> GPTModel:
    return GPTModel(
        config=transformer,
        transformer_layer_spec=_layer_spec(_rope_theta(config)),
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
        position_embedding_type="none",  # SDPACoreAttention turns queries and keys
    )
