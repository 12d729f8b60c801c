"""The short convolution in front of the gated delta rule, on packed sequences."""

import torch.nn.functional as F
from torch import Tensor


def causal_conv(x_TD: Tensor, weight_DW: Tensor, position_T: Tensor) -> Tensor:
    """Depthwise causal convolution then SiLU, on packed sequences: a tap that would reach before the sequence's start reads 0.

    Args:
        x_TD: inputs.
        weight_DW: one filter of W taps a channel, the last tap on the token itself.
        position_T: each token's index in its own sequence.
    """
    width = weight_DW.size(1)
    y = x_TD * weight_DW[:, -1]
    for back in range(1, min(width, x_TD.size(0))):
        shifted = F.pad(x_TD[:-back], (0, 0, back, 0)).masked_fill((position_T < back)[:, None], 0)
        y = y + shifted * weight_DW[:, width - 1 - back]
    return F.silu(y)
