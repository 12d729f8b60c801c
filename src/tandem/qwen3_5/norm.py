"""RMSNorm in plain PyTorch, with Megatron's constructor."""

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """Zero-centred RMSNorm: x / rms(x) * (1 + weight), computed in fp32, as Qwen3.5's decoder norms are."""

    zero_centred = True

    def __init__(self, config, hidden_size: int, eps: float = 1e-6, **_):
        super().__init__()
        self.eps = eps
        fill = torch.zeros if self.zero_centred else torch.ones
        self.weight = torch.nn.Parameter(fill(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # its gradient is a partial sum there; Megatron all-reduces marked ones

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = self.shared_weight().float()
        return (y * (1 + weight if self.zero_centred else weight)).to(x.dtype)

    def shared_weight(self) -> Tensor:
        """The weight, whose gradient is whole on every tensor-parallel rank once Megatron has reduced gradients."""
        return self.weight


class OnesRMSNorm(RMSNorm):
    """x / rms(x) * weight: the output norm of Gated DeltaNet, which is not zero-centred in the checkpoints.

    Each tensor-parallel rank norms its own heads with the same weight, so gradients are partial with and without sequence parallelism.
    """

    zero_centred = False

    def shared_weight(self) -> Tensor:
        """Without the mark for sequence parallelism Megatron sums only gradients of norms named q_layernorm and k_layernorm."""
        return self.weight if self.weight.sequence_parallel else copy_to_tensor_model_parallel_region(self.weight)
