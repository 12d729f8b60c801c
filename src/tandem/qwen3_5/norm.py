"""RMSNorm in plain PyTorch, with Megatron's constructor."""

import torch
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
        weight = self.weight.float()
        return (y * (1 + weight if self.zero_centred else weight)).to(x.dtype)


class OnesRMSNorm(RMSNorm):
    """x / rms(x) * weight: the output norm of Gated DeltaNet, which is not zero-centred in the checkpoints."""

    zero_centred = False
