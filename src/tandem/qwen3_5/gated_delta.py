"""The gated delta rule on packed sequences, in chunks, in plain PyTorch.

Source: Yang et al., "Gated Delta Networks", 2024 (arXiv 2412.06464), chunkwise form with the WY representation. Per head, with state S [K, V]:

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - (exp(g_t) S_{t-1})^T k_t))^T        o_t = S_t^T q_t / sqrt(K)

Every sequence is cut into chunks of its own, so the work grows with the tokens and no state crosses a boundary. What needs no state is done
for all chunks at once; the scan takes one step for the j-th chunks of all sequences together.

Shape letters: T tokens, S sequences, N chunks, C chunk length, H value heads, K key dim, V value dim.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ChunkLayout:
    """How packed sequences are cut into chunks: made once for a micro-batch, used by every layer.

    Chunks are ordered by their place j in the sequence, then by sequence, longest first, so that the chunks of scan step j are one slice
    and the sequences still running are a prefix.
    """

    token_of_slot: Tensor  # [N, C] int64, the token in each chunk slot; padding slots repeat token 0
    is_token: Tensor  # [N, C] bool
    slot_of_token: Tensor  # [T] int64 into N * C
    steps: tuple[int, ...]  # chunks in scan step j = sequences with more than j chunks
    order: Tensor  # [S] int64, sequences longest first


def chunk_layout(cu_seqlens: Tensor, chunk_size: int = 64) -> ChunkLayout:
    """Args: cu_seqlens [S + 1] int, on the CPU. Returns tensors on the CPU; move them with `chunk_layout_to`."""
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
    num_chunks = (lengths + chunk_size - 1) // chunk_size
    order = torch.argsort(num_chunks, descending=True, stable=True)
    steps = tuple(int((num_chunks > j).sum()) for j in range(int(num_chunks.max())))
    starts, sorted_lengths = cu_seqlens[:-1].long()[order], lengths[order]
    slots = torch.arange(chunk_size)
    token_of_slot, is_token = [], []
    for j, count in enumerate(steps):
        offset = j * chunk_size + slots[None]
        valid = offset < sorted_lengths[:count, None]
        token_of_slot.append(torch.where(valid, starts[:count, None] + offset, 0))
        is_token.append(valid)
    token_of_slot_NC, is_token_NC = torch.cat(token_of_slot), torch.cat(is_token)
    slot_of_token = torch.empty(int(cu_seqlens[-1]), dtype=torch.long)
    slot_of_token[token_of_slot_NC[is_token_NC]] = is_token_NC.flatten().nonzero()[:, 0]
    return ChunkLayout(token_of_slot_NC, is_token_NC, slot_of_token, steps, order)


def gated_delta_rule(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    g_TH: Tensor,
    beta_TH: Tensor,
    layout: ChunkLayout,
    initial_state_SHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states of packed sequences.

    Args:
        q_THK, k_THK: queries and keys, any dtype, not yet L2-normalised; heads already repeated to the value heads.
        v_THV: values.
        g_TH: log decay, <= 0, fp32.
        beta_TH: write strength in (0, 1).
        layout: from `chunk_layout`.
        initial_state_SHKV: state before each sequence, zeros when None.

    Returns:
        o [T, H, V] in the dtype of v, final states [S, H, K, V] fp32. Computed in fp32.
    """
    num_chunks, chunk_size = layout.token_of_slot.shape

    def to_chunks(x: Tensor) -> Tensor:  # [T, H, ...] -> [N, H, C, ...], zeros in padding slots
        x = x.float()[layout.token_of_slot.flatten()]
        x = x * layout.is_token.flatten().view(-1, *[1] * (x.dim() - 1))
        return x.view(num_chunks, chunk_size, *x.shape[1:]).transpose(1, 2)

    q, k, v = to_chunks(_l2_norm(q_THK) * q_THK.size(-1) ** -0.5), to_chunks(_l2_norm(k_THK)), to_chunks(v_THV)
    beta, decay = to_chunks(beta_TH), to_chunks(g_TH).cumsum(-1)  # [N, H, C]; beta 0 writes nothing, g 0 forgets nothing

    above = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).triu(1)
    pair_decay = (decay[..., :, None] - decay[..., None, :]).masked_fill(above, float("-inf")).exp()  # [N, H, C, C]
    k_beta = k * beta[..., None]
    system = (k_beta @ k.transpose(-1, -2)) * pair_decay
    rhs = torch.cat([v * beta[..., None], k_beta * decay.exp()[..., None]], -1)
    # (I + strictly lower part) x = rhs; `unitriangular` ignores the diagonal
    u, w = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True).split([v.size(-1), k.size(-1)], -1)
    attention = (q @ k.transpose(-1, -2)) * pair_decay
    q_in = q * decay.exp()[..., None]
    k_out = (k * (decay[..., -1:] - decay).exp()[..., None]).transpose(-1, -2)
    chunk_decay = decay[..., -1].exp()[..., None, None]

    num_heads, key_dim, value_dim = q.size(1), q.size(-1), v.size(-1)
    if initial_state_SHKV is None:
        state = q.new_zeros(layout.steps[0], num_heads, key_dim, value_dim)
    else:
        state = initial_state_SHKV.float()[layout.order]
    outputs, finished, start = [], [], 0
    for count in layout.steps:
        finished.append(state[count:])
        state, here = state[:count], slice(start, start + count)
        v_new = u[here] - w[here] @ state
        outputs.append(q_in[here] @ state + attention[here] @ v_new)
        state = state * chunk_decay[here] + k_out[here] @ v_new
        start += count
    finished.append(state)
    final = torch.cat(finished[::-1])[torch.argsort(layout.order)]
    o = torch.cat(outputs).transpose(1, 2).reshape(num_chunks * chunk_size, num_heads, value_dim)
    return o[layout.slot_of_token].to(v_THV.dtype), final


def causal_conv(x_TD: Tensor, weight_DW: Tensor, position_T: Tensor) -> Tensor:
    """Depthwise causal convolution then SiLU, on packed sequences: a tap that would reach before the sequence's start reads 0.

    Args:
        x_TD: inputs.
        weight_DW: one filter of W taps a channel, the last tap on the token itself.
        position_T: each token's index in its own sequence.
    """
    width = weight_DW.size(1)
    y = x_TD * weight_DW[:, -1]
    for back in range(1, width):
        if back >= x_TD.size(0):
            break
        shifted = F.pad(x_TD[:-back], (0, 0, back, 0)) * (position_T >= back)[:, None]
        y = y + shifted * weight_DW[:, width - 1 - back]
    return F.silu(y)


def _l2_norm(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
