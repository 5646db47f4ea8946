"""The Megatron trainer: pretraining of the small base model and critic-free PPO, on CPU (gloo) and GPUs (NCCL)."""
