"""Tandem: reinforcement learning for Qwen3.5 vision-language models. Megatron-Core trains, vLLM generates, Ray seats them."""

__version__ = "0.1.0"
