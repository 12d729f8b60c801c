"""Ratios of probabilities under the present and the old policy, of tokens and of sequences."""

import torch
from torch import Tensor

from tandem.algorithms.losses.types import LossBatch

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: far outside any clip, and still finite in fp32


def log_ratios(batch: LossBatch) -> Tensor:
    """[R] log p(present) - log p(old) of each token, bounded."""
    return (batch.logprobs_R - batch.old_logprobs_R).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_sums(values_R: Tensor, batch: LossBatch) -> Tensor:
    """[R]: at each token the sum over its sequence."""
    zeros_S = values_R.new_zeros(batch.num_segments)
    return zeros_S.index_add(0, batch.segment_ids_R, values_R)[batch.segment_ids_R]


def sequence_means(values_R: Tensor, batch: LossBatch) -> Tensor:
    """[R]: at each token the mean over its sequence."""
    return sequence_sums(values_R, batch) / sequence_sums(torch.ones_like(values_R), batch)
