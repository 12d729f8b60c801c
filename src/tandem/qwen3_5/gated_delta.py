"""The gated delta rule on packed sequences, in chunks, in plain PyTorch.

Source: Yang et al., "Gated Delta Networks", 2024 (arXiv 2412.06464), the chunkwise form. Per head, with state S [K, V]:

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - (exp(g_t) S_{t-1})^T k_t))^T        o_t = S_t^T q_t / sqrt(K)

Every sequence is cut into chunks of its own, so the work grows with the tokens and no state crosses a boundary. A few chunks at a time,
a segment, are worked on: what needs no state for all of them at once, then the scan. Between forward and backward only the inputs and the
state before each segment are kept; the backward pass computes the rest again.

Shape letters: T tokens, S sequences, N chunks, n chunks of a segment, C chunk length, H value heads, G key heads, K key dim, V value dim;
R = 2 C rows: a chunk's queries, then its keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The most sequences and chunks of a segment. An accelerator wants few, large kernels. A CPU wants as many chunks as stay in its caches,
# CPU_WIDTH columns of keys and values over all heads and chunks, but with fewer than 4 chunks the calls would cost more than the work.
ACCELERATOR_SEGMENT, CPU_WIDTH = (64, 128), 4096


@dataclass(frozen=True)
class Segment:
    chunks: slice  # of N
    sequences: slice  # of S, longest first
    steps: tuple[int, ...]  # chunks of each scan step = sequences still running, the first ones of `sequences`


@dataclass(frozen=True)
class ChunkLayout:
    """How packed sequences are cut into chunks: made once for a micro-batch, used by every layer.

    Sequences, longest first, form groups. A group's chunks are ordered by their place in the sequence, then by sequence, so that a scan
    step is one slice and the sequences still running are a prefix of the group.
    """

    token_of_slot: Tensor  # [N, C] int64, the token in each chunk slot; padding slots repeat the chunk's last token
    is_token: Tensor  # [N, C] bool
    order: Tensor  # [S] int64, sequences longest first
    segments: tuple[Segment, ...]


def segment_size(device: str, width: int) -> tuple[int, int]:
    """The most sequences and the most chunks of a segment. `width`: H * (K + V)."""
    if device != "cpu":
        return ACCELERATOR_SEGMENT
    max_chunks = max(4, CPU_WIDTH // width)
    return max_chunks // 2, max_chunks


def chunk_layout(cu_seqlens: Tensor, width: int, device: str = "cpu", chunk_size: int = 64) -> ChunkLayout:
    """Args: cu_seqlens [S + 1] int, on the CPU; width: H * (K + V); device: where the rule will run."""
    max_sequences, max_chunks = segment_size(device, width)
    lengths = cu_seqlens.diff().long()
    order = torch.argsort(lengths, descending=True, stable=True)
    starts, ends = cu_seqlens[:-1].long()[order, None], cu_seqlens[1:].long()[order, None]
    num_chunks = ((lengths[order] + chunk_size - 1) // chunk_size).tolist()
    token_of_slot, segments, total, slots = [torch.empty(0, chunk_size, dtype=torch.long)], [], 0, torch.arange(chunk_size)
    is_token = [torch.empty(0, chunk_size, dtype=torch.bool)]
    for first in range(0, len(num_chunks), max_sequences):
        group = num_chunks[first : first + max_sequences]
        steps: list[int] = []
        for j in range(group[0]):
            steps.append(sum(n > j for n in group))
            running = slice(first, first + steps[-1])
            token = starts[running] + j * chunk_size + slots
            token_of_slot.append(token.minimum(ends[running] - 1))
            is_token.append(token < ends[running])
            if sum(steps) + steps[-1] > max_chunks or j + 1 == group[0]:
                segments.append(Segment(slice(total, total + sum(steps)), slice(first, first + steps[0]), tuple(steps)))
                total += sum(steps)
                steps = []
    return ChunkLayout(*(x.to(device) for x in (torch.cat(token_of_slot), torch.cat(is_token), order)), tuple(segments))


def gated_delta_rule(
    q_TGK: Tensor,
    k_TGK: Tensor,
    v_THV: Tensor,
    g_TH: Tensor,
    beta_TH: Tensor,
    layout: ChunkLayout,
    initial_state_SHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and final states of packed sequences. Differentiable once, in all tensors.

    Args:
        q_TGK, k_TGK: queries and keys, any dtype, not yet L2-normalised. Key head i serves value heads i * H / G to (i + 1) * H / G - 1.
        v_THV: values.
        g_TH: log decay, <= 0 and finite, fp32.
        beta_TH: write strength in (0, 1).
        layout: from `chunk_layout`.
        initial_state_SHKV: state before each sequence, zeros when None.

    Returns:
        o [T, H, V] in the dtype of v, final states [S, H, K, V] fp32. Computed in fp32.
    """
    if initial_state_SHKV is None:
        initial_state_SHKV = g_TH.new_zeros(layout.order.size(0), v_THV.size(1), k_TGK.size(2), v_THV.size(2), dtype=torch.float32)
    return _GatedDeltaRule.apply(q_TGK, k_TGK, v_THV, g_TH, beta_TH, initial_state_SHKV, layout)


class _GatedDeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial_state, layout):
        state, states_before = initial_state.float()[layout.order], []
        o = v.new_empty(v.size(0) + 1, *v.shape[1:])  # the last row takes what padding slots write
        for segment in layout.segments:
            x = _Chunks(q, k, v, g, beta, layout, segment)
            states_before.append(state[segment.sequences].clone())
            states, new_values = x.scan(state[segment.sequences])
            x.scatter(o, torch.bmm(x.q_in, states).baddbmm_(x.attention, new_values))
        ctx.layout, ctx.initial_dtype = layout, initial_state.dtype
        ctx.save_for_backward(q, k, v, g, beta, *states_before)
        return o[:-1], torch.empty_like(state).index_copy_(0, layout.order, state)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o, d_final):
        (q, k, v, g, beta, *states_before), layout = ctx.saved_tensors, ctx.layout
        d_inputs = [x.new_empty(x.size(0) + 1, *x.shape[1:]) for x in (q, k, v, g, beta)]
        d_state = d_final.float()[layout.order]
        for segment, before in zip(reversed(layout.segments), reversed(states_before)):
            x = _Chunks(q, k, v, g, beta, layout, segment)
            for d_input, part in zip(d_inputs, x.backward(before.clone(), d_o, d_state[segment.sequences])):
                x.scatter(d_input, part)
        d_initial = torch.empty_like(d_state).index_copy_(0, layout.order, d_state).to(ctx.initial_dtype)
        return *(x[:-1] for x in d_inputs), d_initial, None


class _Chunks:
    """One segment's chunks and what needs no state. Padding slots have beta 0, which writes nothing, and g 0, which forgets nothing.

    B: chunks times value heads. What queries and keys have alike is done once, for R rows.
    """

    def __init__(self, q, k, v, g, beta, layout: ChunkLayout, segment: Segment):
        self.steps = [count * v.size(1) for count in segment.steps]  # in B
        self.token, self.is_token = layout.token_of_slot[segment.chunks], layout.is_token[segment.chunks]
        n, C = self.token.shape
        H, G, K = v.size(1), k.size(1), k.size(2)
        qk = torch.empty(n, G, H // G, 2, C, K, dtype=torch.float32, device=v.device)
        qk[:, :, :, 0], qk[:, :, :, 1] = (x[self.token].transpose(1, 2)[:, :, None] for x in (q, k))
        self.qk = qk.view(n * H, 2 * C, K)
        self.norm = (torch.linalg.vector_norm(self.qk, dim=-1, keepdim=True).square() + 1e-6).rsqrt()  # [B, R, 1]
        self.qk *= self.norm
        self.k = self.qk[:, C:]
        self.v = self.gather(v)
        self.beta, decay = self.gather(beta, mask=True), self.gather(g, mask=True).cumsum(-1)  # [B, C]
        self.row_weight = torch.cat([torch.full_like(self.beta, K**-0.5), self.beta], -1)[..., None]
        self.row_decay = decay.exp().repeat(1, 2)[..., None]
        self.qk_in = self.qk * (self.row_weight * self.row_decay)  # reads the state
        self.q_in, self.k_in = self.qk_in.split(C, 1)
        self.decay_out = (decay[:, -1:] - decay).exp()[..., None]
        self.k_out = self.k * self.decay_out  # writes the state
        self.chunk_decay = decay[:, -1, None, None].exp()
        above = torch.ones(C, C, dtype=torch.bool, device=v.device).triu(1)
        pair_decay = (decay[:, :, None] - decay[:, None]).masked_fill_(above, float("-inf")).exp_()
        self.pair_decay = torch.cat([pair_decay, pair_decay.tril(-1)], 1)  # [B, R, C]
        self.pairs = (self.qk @ self.k.mT).mul_(self.pair_decay)
        self.attention, system = (self.pairs * self.row_weight).split(C, 1)
        eye = torch.eye(C, device=v.device).expand_as(system)
        self.inverse = torch.linalg.solve_triangular(system, eye, upper=False, unitriangular=True)  # of 1 + system; entries within 1

    def gather(self, x: Tensor, mask: bool = False) -> Tensor:
        """[T, H, ...] -> [B, C, ...] fp32; with `mask`, zero in padding slots"""
        x = x[self.token].float()
        if mask:
            x.mul_(self.is_token.view(*self.token.shape, *[1] * (x.dim() - 2)))
        return x.transpose(1, 2).flatten(0, 1)

    def scatter(self, out: Tensor, x: Tensor) -> None:
        """[B, C, ...] -> its rows of [T + 1, H, ...]; value heads that share a key head are summed."""
        x = x.unflatten(0, (len(self.token), out.size(1), -1)).sum(2)
        out[torch.where(self.is_token, self.token, out.size(0) - 1)] = x.transpose(1, 2).to(out.dtype)

    def scan(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance `state` in place. Returns the state before each chunk [B, K, V] and the values written [B, C, V]."""
        state, end = state.flatten(0, 1), 0
        states, new_values = state.new_empty(len(self.v), *state.shape[1:]), self.v * self.beta[..., None]
        for count in self.steps:
            here, s = slice(end, end := end + count), state[:count]
            states[here] = s
            new_values[here] = self.inverse[here] @ new_values[here].baddbmm_(self.k_in[here], s, alpha=-1)
            s.mul_(self.chunk_decay[here]).baddbmm_(self.k_out[here].mT, new_values[here])
        return states, new_values

    def backward(self, state: Tensor, d_o: Tensor, d_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v, g and beta. `state`: before the segment; `d_state` is taken back through the segment in place."""
        states, new_values = self.scan(state)
        C, d_states, d_state = self.v.size(1), torch.empty_like(states), d_state.flatten(0, 1)  # d_states: of the state after each chunk
        d_rows = self.v.new_empty(len(self.v), 2 * C, self.v.size(2))  # of what the rows read
        d_rows[:, :C] = self.gather(d_o, mask=True)
        d_new_values, start = self.attention.mT @ d_rows[:, :C], len(states)
        for count in reversed(self.steps):
            here, d_s = slice(start := start - count, start + count), d_state[:count]
            d_states[here] = d_s
            d_rows[here, C:] = self.inverse[here].mT @ d_new_values[here].baddbmm_(self.k_out[here], d_s)
            d_rows[here, C:].neg_()
            d_s.mul_(self.chunk_decay[here]).baddbmm_(self.qk_in[here].mT, d_rows[here])

        d_qk_in, d_pairs, d_k_out = d_rows @ states.mT, d_rows @ new_values.mT, new_values @ d_states.mT
        d_products = d_pairs * self.pair_decay * self.row_weight
        d_qk = (d_qk_in * (self.row_weight * self.row_decay)).baddbmm_(d_products, self.k)
        d_qk[:, C:].baddbmm_(d_products.mT, self.qk).addcmul_(d_k_out, self.decay_out)

        d_pairs *= self.pairs
        d_row_weight = (d_qk_in * self.qk).sum(-1) * self.row_decay[..., 0] + d_pairs.sum(-1)  # [B, R]
        d_v_beta = -d_rows[:, C:]
        d_beta = d_row_weight[:, C:] + (d_v_beta * self.v).sum(-1)
        d_out = (d_k_out * self.k_out).sum(-1)
        d_decay = (d_row_weight * self.row_weight[..., 0]).unflatten(1, (2, C)).sum(1) - (d_pairs * self.row_weight).sum(1) - d_out
        d_decay[:, -1] += d_out.sum(-1) + (states * d_states).sum((-1, -2)) * self.chunk_decay[:, 0, 0]
        d_g = d_decay.flip(-1).cumsum(-1).flip(-1)
        d_qk = self.norm * (d_qk - self.qk * (d_qk * self.qk).sum(-1, keepdim=True))
        return d_qk[:, :C], d_qk[:, C:], d_v_beta * self.beta[..., None], d_g, d_beta
