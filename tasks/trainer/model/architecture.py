"""Megatron's configuration and layers for an architecture of infra/model/architectures.py."""

from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, Literal

from tasks.trainer.model import process_setup  # noqa: F401  # before Megatron

# isort: split
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from infra.model.architectures import Architecture
from tasks.trainer.model.attention import SDPACoreAttention
from tasks.trainer.model.elementwise import RMSNorm, SwiGLU
from tasks.trainer.model.megatron_arguments import RECOMPUTE, check_known, check_reserved
from tasks.trainer.model.process_group import Parallel

Recompute = Literal["none", "selective", "full"]
"""As the setting train.recompute."""


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse Megatron arguments of a user that are unknown, or that the trainer sets itself.

    Raises:
        ValueError: names the argument, its value and what was expected.
    """
    check_reserved(arguments)
    check_known(arguments, known_arguments())


def known_arguments() -> set[str]:
    """Return the names of the arguments that reach a Megatron configuration."""
    return _field_names(TransformerConfig) | _field_names(OptimizerConfig)


def configured(configuration: type[Any], arguments: Mapping[str, Any], **own: Any) -> Any:
    """Return a Megatron configuration with the trainer's own values, overridden by a user's arguments that it has.

    Raises:
        ValueError: Megatron refuses the user's values.
    """
    given = {name: value for name, value in arguments.items() if name in _field_names(configuration)}
    try:
        return configuration(**own | given)
    except (AssertionError, TypeError, ValueError) as error:
        if not given:
            raise
        raise ValueError(
            f"train.megatron_arguments = {given}: Megatron's {configuration.__name__} refuses them: {error!r}"
        ) from error


def _field_names(configuration: type[Any]) -> set[str]:
    return {field.name for field in fields(configuration) if field.init and not field.name.startswith("_")}


def transformer_config(
    model: Architecture, parallel: Parallel, bf16: bool, recompute: Recompute, arguments: Mapping[str, Any], init_std: float
) -> TransformerConfig:
    """Return Megatron's configuration of this rank's part of a model.

    Args:
        bf16: whether matrix products are computed in bfloat16.
        recompute: activations that the backward pass recomputes.
        arguments: a user's Megatron arguments, already checked.
        init_std: standard deviation of random weights.

    Raises:
        ValueError: Megatron refuses an argument's value.
    """
    dtype = torch.bfloat16 if bf16 else torch.float32
    return configured(
        TransformerConfig,
        arguments,
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.mlp,
        num_attention_heads=model.heads,
        num_query_groups=model.groups,
        kv_channels=model.head,
        normalization="RMSNorm",
        layernorm_epsilon=model.epsilon,
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=init_std,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        sequence_parallel=parallel.sequence,
        bf16=bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        calculate_per_token_loss=True,
        variable_seq_lengths=parallel.pipeline > 1,
        moe_token_dispatcher_type="alltoall",  # variable lengths over a pipeline need it, in dense models too
        batch_p2p_comm=True,
        deallocate_pipeline_outputs=parallel.pipeline > 1,
        use_cpu_initialization=not torch.cuda.is_available(),
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        use_te_activation_func=True,  # takes the activation of the layer spec, SwiGLU
        **_recomputed(recompute, model.layers // parallel.pipeline),
    )


def _recomputed(recompute: Recompute, layers: int) -> dict[str, Any]:
    """Return Megatron's arguments of a recomputation; `layers`: layers of a pipeline stage."""
    if recompute == "none":
        return {}
    if recompute == "selective":
        return dict(RECOMPUTE)
    # The last layer's positions are left before the backward pass (last_layer.py).
    some = layers - 1 if parallel_state.is_pipeline_last_stage() else layers
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": some} if some else {}


def gpt_model(model: Architecture, transformer: TransformerConfig) -> GPTModel:
    """Return this rank's part of the model, with random weights. Raises NotImplementedError: Transformer Engine is installed."""
    return GPTModel(
        config=transformer,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[_layer_spec(model)] * (transformer.num_layers // transformer.pipeline_model_parallel_size),
            layer_norm=RMSNorm,
        ),
        vocab_size=model.vocabulary,
        max_sequence_length=model.positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tied,
        position_embedding_type="none",  # SDPACoreAttention rotates queries and keys
    )


def _layer_spec(model: Architecture) -> ModuleSpec:
    """Return the layers for any device; Transformer Engine's layers would be chosen here.

    Raises:
        NotImplementedError: Transformer Engine is installed, so that Megatron would also take its optimizer.
    """
    if find_spec("transformer_engine"):
        raise NotImplementedError(
            "transformer_engine is installed: the trainer is not built for its layers and its optimizer, expected an environment "
            "without it; pip uninstall transformer-engine"
        )
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=model.qk_norm)
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = ModuleSpec(SDPACoreAttention, params={"rope_theta": model.rope_theta})
    if model.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if model.output_bias:
        attention.linear_proj = _BiasedRowParallelLinear
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RMSNorm
    spec.submodules.mlp.submodules.activation_func = SwiGLU
    return spec


class _BiasedRowParallelLinear(RowParallelLinear):
    """The attention's output with a bias, which Megatron's configuration has for all layers' matrices or for none."""

    def __init__(self, *arguments: Any, bias: bool, **options: Any) -> None:
        super().__init__(*arguments, bias=True, **options)
