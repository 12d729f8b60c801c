"""Log-probs and entropy from hidden states, vocabulary-parallel and chunked: no [tokens, vocabulary] tensor ever exists.

The forward pass works through the tokens a chunk at a time, the backward pass through the vocabulary a block at a time: so the weight's
gradient is one product over all tokens, summed in the matrix unit's precision, never chunk by chunk in bf16. Between them only the hidden
states and three numbers a token are kept.

Shapes: L tokens, c tokens of a chunk, D hidden size, V rows of the vocabulary on this tensor-parallel rank, v rows of a block.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

CHUNK_BYTES = 128 << 20  # of one chunk's or block's fp32 logits; two such tensors live at a time
LOWEST = -1e30  # in place of -inf, which times a probability of 0 would not be 0


def chunk_size(vocab_size: int) -> int:
    """Tokens of a chunk of the forward pass. Args: vocab_size: V."""
    return max(1, CHUNK_BYTES // (4 * vocab_size))


def token_scores(
    hidden_LD: Tensor,
    weight_VD: Tensor,
    target_L: Tensor,
    *,
    tp_group: ProcessGroup,
    temperature: float = 1.0,
    banned: Tensor | None = None,
    entropy_grad: bool = False,
    chunk: int = 0,
) -> Tensor:
    """Log-prob of each target and entropy of each distribution. Differentiable once, in hidden states and weight.

    Args:
        hidden_LD: final hidden states, the same on every tensor-parallel rank. Their gradient is this rank's share: the caller's mapping
            sums it over the ranks.
        weight_VD: this rank's rows of the output embedding.
        target_L: target token ids in the whole vocabulary.
        temperature: logits are divided by it, here and nowhere else.
        banned: ids that the policy can never sample; their logits are -inf.
        entropy_grad: whether the entropy has a gradient too.
        chunk: tokens worked on at a time; 0: as many as CHUNK_BYTES hold. A block of the backward pass has as many logits.

    Returns:
        [2, L] fp32: log-probs, entropies in nats.
    """
    return _TokenScores.apply(hidden_LD, weight_VD, target_L, _Head(weight_VD.size(0), tp_group, temperature, banned, chunk), entropy_grad)


class _Head:
    """What turns hidden states into logits beside the weight."""

    def __init__(self, num_rows: int, group: ProcessGroup, temperature: float, banned: Tensor | None, chunk: int):
        self.group, self.temperature, self.chunk = group, temperature, chunk or chunk_size(num_rows)
        self.first, self.num_rows = group.rank() * num_rows, num_rows
        self.banned = None
        if banned is not None and banned.numel():
            self.banned = banned[(banned >= self.first) & (banned < self.first + num_rows)] - self.first

    def logits(self, hidden: Tensor, weight: Tensor, rows: slice = slice(None)) -> Tensor:
        """[c, v] fp32"""
        logits = (hidden @ weight[rows].t()).float()
        if self.temperature != 1.0:
            logits /= self.temperature
        return logits if self.banned is None else logits.index_fill_(1, self._banned_in(rows), float("-inf"))

    def chunks(self, num_tokens: int) -> list[slice]:
        return [slice(start, start + self.chunk) for start in range(0, num_tokens, self.chunk)]

    def blocks(self, num_tokens: int) -> list[slice]:
        """Rows of the vocabulary."""
        size = max(1, self.chunk * self.num_rows // max(1, num_tokens))
        return [slice(start, min(start + size, self.num_rows)) for start in range(0, self.num_rows, size)]

    def score(self, hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [2, c], log of the sum of all exponentials [c, 1]."""
        logits = self.logits(hidden, weight)
        peak = logits.max(1, keepdim=True).values
        all_reduce(peak, op=ReduceOp.MAX, group=self.group)
        column, is_here = self._column(target, slice(0, self.num_rows))
        picked = torch.where(is_here, logits.sub_(peak).gather(1, column), 0.0)
        share = logits.clamp_(min=LOWEST).exp()
        sums = torch.cat([picked, share.sum(1, keepdim=True), logits.mul_(share).sum(1, keepdim=True)], 1)
        all_reduce(sums, group=self.group)
        picked, total, expected = sums.split(1, 1)
        log_total = total.log()
        return torch.cat([picked - log_total, log_total - expected / total], 1).t(), peak + log_total

    def backward(
        self, logprobs: Tensor, rows: slice, target: Tensor, entropy: Tensor, d_logprob: Tensor, d_entropy: Tensor | None
    ) -> Tensor:
        """Gradient of the undivided logits [L, v] of some rows, made in place of `logprobs` [L, v]; all others are [L]."""
        if d_entropy is None:
            d_logits = logprobs.exp_().mul_(-d_logprob[:, None])
        else:
            factor = logprobs.clamp(min=LOWEST).add_(entropy[:, None]).mul_(-d_entropy[:, None]).sub_(d_logprob[:, None])
            d_logits = logprobs.exp_().mul_(factor)
        column, is_here = self._column(target, rows)
        d_logits.scatter_add_(1, column, torch.where(is_here, d_logprob[:, None], 0.0))
        if self.banned is not None:
            d_logits.index_fill_(1, self._banned_in(rows), 0.0)
        return d_logits.div_(self.temperature)

    def _column(self, target: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """[c, 1] each target's column among `rows`, and whether it is there."""
        at, size = (target - self.first - rows.start)[:, None], rows.stop - rows.start
        return at.clamp(0, size - 1), (at >= 0) & (at < size)

    def _banned_in(self, rows: slice) -> Tensor:
        """Their columns among `rows`."""
        start, stop, _ = rows.indices(self.num_rows)
        return self.banned[(self.banned >= start) & (self.banned < stop)] - start


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target, head, entropy_grad):
        scores, log_total = hidden.new_empty(2, len(hidden), dtype=torch.float32), hidden.new_empty(len(hidden), 1, dtype=torch.float32)
        for here in head.chunks(len(hidden)):
            scores[:, here], log_total[here] = head.score(hidden[here], weight, target[here])
        ctx.head, ctx.entropy_grad = head, entropy_grad
        ctx.save_for_backward(hidden, weight, target, log_total, scores[1])
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, d_scores):
        (hidden, weight, target, log_total, entropy), head = ctx.saved_tensors, ctx.head
        d_hidden, d_weight = torch.zeros_like(hidden, dtype=torch.float32), torch.empty_like(weight)
        for rows in head.blocks(len(hidden)):
            logprobs = head.logits(hidden, weight, rows).sub_(log_total)
            d_entropy = d_scores[1] if ctx.entropy_grad else None
            d_logits = head.backward(logprobs, rows, target, entropy, d_scores[0], d_entropy).to(hidden.dtype)
            torch.mm(d_logits.t(), hidden, out=d_weight[rows])
            d_hidden += d_logits @ weight[rows]
            del logprobs, d_logits  # before the next block's
        return d_hidden.to(hidden.dtype), d_weight, None, None, None
