"""Checks of the Megatron-core arguments that a user gives (setting train.megatron_arguments). Importing it imports no Megatron.

The trainer sets the arguments below itself: with another value it would compute something else, or fail in the middle of an
update.
"""

from collections.abc import Collection, Mapping
from typing import Any

_CHECKPOINT = "the checkpoint's config.json defines the model"
_PRECISION = "train.precision sets the data types, over float32 masters"
_CLIP = "train.max_grad_norm sets it"
_RATE = "train.learning_rate and train.warmup_steps set the learning rate of every step"
_GRADIENT = "the update needs the mean gradient over the sampled tokens of all ranks, between steps of its own"
_SPLIT = "the trainer splits a model evenly, by train.tensor_parallel, train.pipeline_parallel and train.sequence_parallel only"
_LAST_LAYER = "the last layer runs at positions that only the first forward pass knows; train.recompute is for the other layers"
_DROPOUT = "dropout would change the probabilities that the policy ratio compares"
_STATE = "checkpoints and optimizer state are written from Adam's float32 masters and state"
_SHARED_STATE = "train.distributed_optimizer sets it"

_RESERVED_BY_REASON: dict[str, tuple[str, ...]] = {
    _CHECKPOINT: (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
        *("normalization", "layernorm_epsilon", "layernorm_zero_centered_gamma", "qk_layernorm", "qk_l2_norm"),
        *("gated_linear_unit", "glu_linear_offset", "activation_func", "activation_func_clamp_value", "use_te_activation_func"),
        *("add_bias_linear", "add_qkv_bias", "softmax_scale", "softmax_type", "window_size", "window_attn_skip_freq"),
        *("apply_residual_connection_post_layernorm", "apply_query_key_layer_scaling", "attention_output_gate"),
        *("rotary_interleaved", "no_rope_freq", "num_moe_experts", "multi_latent_attention", "mtp_num_layers"),
        *("experimental_attention_variant", "linear_attention_freq", "heterogeneous_block_specs", "is_hybrid_model"),
    ),
    _PRECISION: (
        *("bf16", "fp16", "fp8", "fp4", "fp8_param", "fp4_param", "params_dtype", "pipeline_dtype"),
        *("enable_autocast", "autocast_dtype"),
    ),
    _SPLIT: (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout"),
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
        *("sequence_parallel", "context_parallel_size", "hierarchical_context_parallel_sizes", "hybrid_context_parallel"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size"),
    ),
    _GRADIENT: (
        *("calculate_per_token_loss", "variable_seq_lengths", "moe_token_dispatcher_type", "deallocate_pipeline_outputs"),
        *("finalize_model_grads_func", "grad_scale_func", "no_sync_func", "grad_sync_func", "param_sync_func"),
        "loss_scale",
    ),
    _CLIP: ("clip_grad",),
    _DROPOUT: ("attention_dropout", "hidden_dropout"),
    _LAST_LAYER: (
        *("recompute_method", "recompute_num_layers"),
        *("num_microbatches_with_partial_activation_checkpoints", "distribute_saved_activations"),
        *("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl"),
    ),
    _RATE: ("lr", "min_lr", "decoupled_lr", "decoupled_min_lr"),
    _SHARED_STATE: ("use_distributed_optimizer",),
    _STATE: (
        *("optimizer", "use_precision_aware_optimizer", "optimizer_cpu_offload"),
        *("overlap_param_gather", "overlap_param_gather_with_optimizer_step", "store_param_remainders"),
        *("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    ),
}
RESERVED = {name: reason for reason, names in _RESERVED_BY_REASON.items() for name in names}
"""Reason by the name of each argument that a user may not set."""
RECOMPUTE = {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}
"""Megatron's arguments of `train.recompute = "selective"`, which users may also give themselves."""


def check_reserved(arguments: Mapping[str, Any]) -> None:
    """Refuse the arguments that the trainer sets itself.

    Raises:
        ValueError: names the argument, its value and the reason.
    """
    for name, value in arguments.items():
        if name in RESERVED:
            raise ValueError(
                f"train.megatron_arguments.{name} = {value!r}: the trainer sets it itself ({RESERVED[name]}); remove it"
            )
    if arguments.get("recompute_granularity") and (given := {name: arguments.get(name) for name in RECOMPUTE}) != RECOMPUTE:
        raise ValueError(f"train.megatron_arguments = {given}: expected {RECOMPUTE} or neither: {_LAST_LAYER}")


def check_known(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse names that Megatron does not have.

    Args:
        known: fields of the Megatron configurations that take arguments.

    Raises:
        ValueError: names the argument, its value and what was expected.
    """
    for name, value in arguments.items():
        if name not in known:
            raise ValueError(
                f"train.megatron_arguments.{name} = {value!r}: no such argument, expected a field of Megatron-core's "
                "TransformerConfig or OptimizerConfig; correct the name or remove it"
            )
