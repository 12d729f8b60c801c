"""Log-probs and entropy from hidden states, vocabulary-parallel and chunked: no [tokens, vocabulary] tensor is kept.

The logits of one chunk live during that chunk's forward and are computed again in its backward.
"""

import torch
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_scores(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_L: Tensor,
    *,
    tp_group: torch.distributed.ProcessGroup,
    temperature: float = 1.0,
    banned: Tensor | None = None,
    entropy_grad: bool = False,
    chunk: int = 1024,
) -> Tensor:
    """Log-prob of each target and entropy of each distribution.

    Args:
        hidden_LH: final hidden states, the same on every tensor-parallel rank, their gradient summed over them by the caller's mapping.
        weight_VH: this rank's rows of the output embedding.
        target_L: target token ids in the whole vocabulary.
        temperature: logits are divided by it, here and nowhere else.
        banned: ids that the policy can never sample; their logits are -inf.
        entropy_grad: keep the graph of the entropy.

    Returns:
        [2, L] fp32: log-probs, entropies in nats.
    """
    first = tp_group.rank() * weight_VH.size(0)
    here = None
    if banned is not None and banned.numel():
        here = banned[(banned >= first) & (banned < first + weight_VH.size(0))] - first
    pieces = []
    for hidden, target in zip(hidden_LH.split(chunk), target_L.split(chunk)):
        arguments = (hidden, weight_VH, target, first, temperature, here, entropy_grad, tp_group)
        if torch.is_grad_enabled() and len(hidden_LH) > chunk:
            pieces.append(checkpoint(_chunk_scores, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(_chunk_scores(*arguments))
    return torch.cat(pieces, dim=1)


def _chunk_scores(hidden, weight, target, first, temperature, banned, entropy_grad, tp_group) -> Tensor:
    logits = (hidden @ weight.t()).float()
    if temperature != 1.0:
        logits = logits / temperature
    if banned is not None:
        logits = logits.index_fill(1, banned, float("-inf"))
    with torch.no_grad():
        peak = logits.max(dim=1).values
        torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX, group=tp_group)
    logits = logits - peak[:, None]
    log_total = reduce_from_tensor_model_parallel_region(logits.exp().sum(1)).log()
    local = target - first
    mine = (local >= 0) & (local < weight.size(0))
    picked = logits.gather(1, local.clamp(0, weight.size(0) - 1)[:, None])[:, 0]
    picked = reduce_from_tensor_model_parallel_region(torch.where(mine, picked, 0.0))
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        probability = (logits - log_total[:, None]).exp()
        expected = (probability * logits.masked_fill(probability == 0, 0.0)).sum(1)  # a banned logit is -inf with probability 0
        entropy = log_total - reduce_from_tensor_model_parallel_region(expected)
    return torch.stack([picked - log_total, entropy])
