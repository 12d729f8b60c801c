"""The gated delta rule on packed sequences, in chunks, in plain PyTorch.

Source: Yang et al., "Gated Delta Networks", 2024 (arXiv 2412.06464), the chunkwise form. Per head, with state S [K, V]:

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - (exp(g_t) S_{t-1})^T k_t))^T        o_t = S_t^T q_t / sqrt(K)

Every sequence is cut into chunks of its own, so the work grows with the tokens and no state crosses a boundary. A few chunks at a time,
a segment, are worked on: what needs no state for all of them at once, then the scan. Between forward and backward only the inputs and the
state before each segment are kept; the backward pass computes the rest again.

Shape letters: T tokens, S sequences, N chunks, n chunks of a segment, C chunk length, H value heads, G key heads, K key dim, V value dim;
R = 2 C rows: a chunk's queries, then its keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Tokens of a chunk, and the most sequences and chunks of a segment. An accelerator wants few, large kernels. A CPU gains from short chunks,
# whose pairs are less work, and from segments that stay in its caches, CPU_WIDTH columns of keys and values over all heads and chunks;
# but with fewer than 8 chunks the calls would cost more than the work.
ACCELERATOR_SEGMENT, CPU_CHUNK, CPU_WIDTH = (64, 64, 128), 32, 4096


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


def segment_size(device: str, width: int) -> tuple[int, int, int]:
    """Tokens of a chunk, the most sequences and the most chunks of a segment. `width`: H * (K + V)."""
    if device != "cpu":
        return ACCELERATOR_SEGMENT
    max_chunks = max(8, CPU_WIDTH // width)
    return CPU_CHUNK, max_chunks // 4, max_chunks


def chunk_layout(cu_seqlens: Tensor, width: int, device: str = "cpu") -> ChunkLayout:
    """Args: cu_seqlens [S + 1] int, on the CPU; width: H * (K + V); device: where the rule will run."""
    chunk_size, max_sequences, max_chunks = segment_size(device, width)
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
        # contiguous: what is indexed keeps the strides of a permuted source, and `scan` writes through a flattened view
        state, states_before = initial_state.float()[layout.order].contiguous(), []
        o = v.new_empty(v.size(0) + 1, *v.shape[1:])
        for segment in layout.segments:
            if any(ctx.needs_input_grad):
                states_before.append(state[segment.sequences].clone())
            chunks = _Chunks(q, k, v, g, beta, layout, segment)
            chunks.scatter(o, chunks.forward(state[segment.sequences]))
            del chunks  # before the next are made
        ctx.layout, ctx.initial_dtype = layout, initial_state.dtype
        ctx.save_for_backward(q, k, v, g, beta, *states_before)
        return o[:-1], torch.empty_like(state).index_copy_(0, layout.order, state)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o, d_final):
        (q, k, v, g, beta, *states_before), layout = ctx.saved_tensors, ctx.layout
        d_inputs = [x.new_empty(x.size(0) + 1, *x.shape[1:]) for x in (q, k, v, g, beta)]
        d_state = d_final.float()[layout.order].contiguous()
        for segment, before in zip(reversed(layout.segments), reversed(states_before)):
            chunks = _Chunks(q, k, v, g, beta, layout, segment)
            for d_input, part in zip(d_inputs, chunks.backward(before.clone(), d_o, d_state[segment.sequences])):
                chunks.scatter(d_input, part)
            del chunks, part
        d_initial = torch.empty_like(d_state).index_copy_(0, layout.order, d_state).to(ctx.initial_dtype)
        return *(x[:-1] for x in d_inputs), d_initial, None


class _Chunks:
    """One segment's chunks and what needs no state. Padding slots have beta 0, which writes nothing, and g 0, which forgets nothing.

    B: chunks times value heads. What queries and keys have alike is done once, for R rows: they read the state and the values written
    before them in the chunk, with weight K ** -0.5 to give outputs, with weight -beta to correct the values.
    """

    def __init__(self, q, k, v, g, beta, layout: ChunkLayout, segment: Segment):
        self.steps = [count * v.size(1) for count in segment.steps]  # in B
        self.token, self.is_token = layout.token_of_slot[segment.chunks], layout.is_token[segment.chunks]
        self.target = torch.where(self.is_token, self.token, v.size(0))  # padding slots write into a row past the last
        n, C = self.token.shape
        H, G, K = v.size(1), k.size(1), k.size(2)
        qk, norm = (torch.empty(n, G, H // G, 2, C, size, dtype=torch.float32, device=v.device) for size in (K, 1))
        for i, x in enumerate((q, k)):
            x = self.select(x).float()[:, :, None]
            norm[:, :, :, i] = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(1e-6).rsqrt_()
            torch.mul(x, norm[:, :, :, i], out=qk[:, :, :, i])
        self.qk, self.norm = qk.view(n * H, 2 * C, K), norm.view(n * H, 2 * C, 1)
        self.k, self.v = self.qk[:, C:], self.gather(v)
        self.beta, decay = self.gather(beta, mask=True), self.gather(g, mask=True).cumsum(-1)  # [B, C]
        self.weight = torch.cat([torch.full_like(self.beta, K**-0.5), -self.beta], -1)[..., None]  # [B, R, 1]
        self.row_decay = decay.exp()[:, None].expand(-1, 2, -1).reshape(n * H, 2 * C, 1)
        self.decay_out = (decay[:, -1:] - decay).exp()[..., None]
        self.chunk_decay = decay[:, -1, None, None].exp()
        self.qk_in = self.qk * (self.weight * self.row_decay)  # reads the state
        self.k_out = self.k * self.decay_out  # writes the state
        self.pair_decay = (decay[:, :, None] - decay[:, None]).exp_().tril_()[:, None]  # [B, 1, C, C]
        pairs = self.qk @ self.k.mT
        pairs.unflatten(1, (2, C)).mul_(self.pair_decay)
        self.attention, system = pairs.mul_(self.weight).split(C, 1)  # on the diagonal of `system` is a key with itself: not looked at
        eye = torch.eye(C, device=v.device).expand_as(system)
        self.inverse = torch.linalg.solve_triangular(-system, eye, upper=False, unitriangular=True)  # of 1 - system; entries within 1

    def select(self, x: Tensor) -> Tensor:
        """[T, H, ...] -> [n, H, C, ...]"""
        return x.index_select(0, self.token.flatten()).unflatten(0, self.token.shape).transpose(1, 2)

    def gather(self, x: Tensor, mask: bool = False) -> Tensor:
        """[T, H, ...] -> [B, C, ...] fp32; with `mask`, zero in padding slots"""
        x = self.select(x).to(torch.float32, memory_format=torch.contiguous_format)
        if mask:
            x.mul_(self.is_token.view(len(self.token), 1, -1, *[1] * (x.dim() - 3)))
        return x.flatten(0, 1)

    def scatter(self, out: Tensor, x: Tensor) -> None:
        """[B, C, ...] -> its rows of [T + 1, H, ...]; value heads that share a key head are summed."""
        x = x.unflatten(0, (len(self.token), out.size(1), -1))
        x = x.sum(2) if x.size(2) > 1 else x[:, :, 0]
        out[self.target] = x.transpose(1, 2).to(out.dtype)

    def scan(self, state: Tensor, rows: slice) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Advance `state` in place. Yields each step's place in B, the state before it, what `rows` read, and the values written."""
        (state, end), C, corrected = (state.flatten(0, 1), 0), self.k.size(1), self.v * self.beta[..., None]
        for count in self.steps:
            here, s = slice(end, end := end + count), state[:count]
            reads = self.qk_in[here, rows] @ s
            new_values = self.inverse[here] @ corrected[here].add_(reads[:, -C:])
            yield here, s, reads, new_values
            s.mul_(self.chunk_decay[here]).baddbmm_(self.k_out[here].mT, new_values)

    def forward(self, state: Tensor) -> Tensor:
        """Outputs [B, C, V]. `state` is advanced in place."""
        o, C = torch.empty_like(self.v), self.k.size(1)
        for here, _, reads, new_values in self.scan(state, slice(None)):
            torch.baddbmm(reads[:, :C], self.attention[here], new_values, out=o[here])
        return o

    def backward(self, state: Tensor, d_o: Tensor, d_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v, g and beta. `state`: before the segment; `d_state` is taken back through the segment in place."""
        states, new_values = state.new_empty(len(self.v), *state.shape[2:]), torch.empty_like(self.v)
        C, d_state = self.v.size(1), d_state.flatten(0, 1)
        for here, s, _, new in self.scan(state, slice(C, None)):
            states[here], new_values[here] = s, new
        d_rows = self.v.new_empty(len(self.v), 2 * C, self.v.size(2))  # of what the rows read
        d_rows[:, :C] = self.gather(d_o, mask=True)
        d_qk, d_k, d_g = (torch.empty_like(x) for x in (self.qk, self.k_out, self.beta))
        d_new_values, start = self.attention.mT @ d_rows[:, :C], len(states)
        for count in reversed(self.steps):
            here, d_s = slice(start := start - count, start + count), d_state[:count]
            d_rows[here, C:] = self.inverse[here].mT @ d_new_values[here].baddbmm_(self.k_out[here], d_s)
            torch.bmm(new_values[here], d_s.mT, out=d_k[here])
            d_s.mul_(self.chunk_decay[here]).baddbmm_(self.qk_in[here].mT, d_rows[here])
            torch.bmm(d_rows[here], states[here].mT, out=d_qk[here])
            d_g[here] = states[here].mul_(d_s).sum((-1, -2))[:, None]

        d_pairs = d_rows @ new_values.mT
        d_pairs.unflatten(1, (2, C)).mul_(self.pair_decay)
        d_pairs[:, C:].diagonal(dim1=1, dim2=2).zero_()
        d_qk.mul_(self.row_decay).baddbmm_(d_pairs, self.k)  # of the rows, for a weight of 1
        d_k = d_k.mul_(self.decay_out).baddbmm_(d_pairs.mul_(self.weight).mT, self.qk)  # of the keys that wrote
        along, along_k = (d_qk * self.qk).sum(-1, keepdim=True), (d_k * self.k).sum(-1, keepdim=True)
        # what a row reads grows with its decay, what a key writes shrinks; over a chunk that adds up to <state, d_state> before it, in d_g
        growth = (along * self.weight).view(-1, 2, C).sum(1) - along_k[..., 0]
        d_g -= growth.cumsum(-1) - growth
        d_v_beta = d_rows[:, C:]
        d_beta = (d_v_beta * self.v).sum(-1) - along[:, C:, 0]
        d_qk.addcmul_(self.qk, along, value=-1).mul_(self.weight * self.norm)
        d_qk[:, C:] += d_k.addcmul_(self.k, along_k, value=-1).mul_(self.norm[:, C:])
        return d_qk[:, :C], d_qk[:, C:], d_v_beta * self.beta[..., None], d_g, d_beta
