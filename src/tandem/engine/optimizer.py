"""Megatron's distributed optimizer on our settings."""

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

from tandem.config.schema import OptimizerConfig


def wrap(config: TransformerConfig, chunks: list[torch.nn.Module]) -> list[DistributedDataParallel]:
    """Model chunks whose gradients are reduced over the data-parallel ranks, in fp32, summed (the loss is normalised globally)."""
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    return [DistributedDataParallel(config, ddp, chunk, disable_bucketing=index > 0) for index, chunk in enumerate(chunks)]


def build(config: OptimizerConfig, chunks: list[DistributedDataParallel], dtype: torch.dtype, *, lr: float, weight_decay: float):
    """AdamW, its state sharded over the data-parallel ranks."""
    return get_megatron_optimizer(
        MegatronOptimizerConfig(
            optimizer="adam",
            lr=lr,
            weight_decay=weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.clip_grad,
            use_distributed_optimizer=True,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
        ),
        chunks,
    )


def set_lr(optimizer, lr: float) -> None:
    """For every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
