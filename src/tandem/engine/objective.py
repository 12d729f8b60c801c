"""From a micro-batch's scores to a loss and to what is reported of it.

Every response token carries a weight, computed once for the whole mini-batch (`fields["weights"]`, summing to 1 over the mini-batch for a
mean). The loss is the weighted sum of per-token losses, so no split into micro-batches, data- or context-parallel ranks changes it.
"""

from typing import Any

import torch
from torch import Tensor

from tandem.algorithms import kl, losses
from tandem.algorithms.losses import LossBatch
from tandem.algorithms.losses.value import value_loss
from tandem.config.schema import AlgorithmConfig
from tandem.data.packing import PackedBatch
from tandem.engine.schedule import LossFunction


def _fields(batch: PackedBatch, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values).to(device) for name, values in batch.fields.items()}


def _nothing(scores: Tensor) -> Tensor:
    """A zero that keeps the graph. A target that is banned has log-prob -inf, and -inf times 0 is not 0."""
    return scores.nan_to_num(neginf=0.0).sum() * 0.0


def report_scores(batch: PackedBatch, scores: Tensor) -> tuple[Tensor, Any]:
    """No loss: the scores of each sequence's response, as {index: ([R], ...)} on the CPU: log-probs and entropies, or a critic's values."""
    at = torch.from_numpy(batch.score_index).to(scores.device)
    picked = scores[:, at].detach().float().cpu().numpy()
    report = {index: picked[:, batch.segment_ids == which] for which, index in enumerate(batch.indices)}
    return _nothing(scores), {index: tuple(values) for index, values in report.items()}


def supervised(num_tokens: int) -> LossFunction:
    """Negative log-likelihood. Args: num_tokens: response tokens of the whole mini-batch, over all ranks."""

    def loss(batch: PackedBatch, scores: Tensor) -> tuple[Tensor, dict[str, float]]:
        fields = _fields(batch, scores.device)
        nll = -scores[0, torch.from_numpy(batch.score_index).to(scores.device)]
        total = (fields["weights"] * nll).sum() if len(nll) else _nothing(scores)
        return total * num_tokens, {"loss/policy": float(total)}

    return loss


def value(clip: float, num_tokens: int) -> LossFunction:
    """A critic's loss. Reads fields: weights, value_targets, old_values. Args: clip, num_tokens: as of `value_loss` and `policy`."""

    def loss(batch: PackedBatch, scores: Tensor) -> tuple[Tensor, dict[str, float]]:
        if not len(batch.score_index):
            return _nothing(scores), {}
        fields = _fields(batch, scores.device)
        values = scores[0, torch.from_numpy(batch.score_index).to(scores.device)]
        out = value_loss(values, fields["old_values"], fields["value_targets"], clip)
        total = (fields["weights"] * out.loss_R).sum()
        return total * num_tokens, {"loss/value": float(total.detach()), "value/clip_share": float(out.clipped_R.sum()) / num_tokens}

    return loss


def policy(algorithm: AlgorithmConfig, num_tokens: int, kl_coef: float) -> LossFunction:
    """The policy loss of `algorithm.loss`, plus KL in the loss, minus the entropy bonus.

    Reads fields: weights, advantages, old_logprobs, and ref_logprobs when the KL term is in the loss. Reports sums over the response tokens
    divided by `num_tokens`, so that adding the ranks' reports gives means.

    Args:
        kl_coef: this step's weight of the KL term.
    """
    policy_loss = losses.get(algorithm.loss)
    kl_in_loss = kl_coef > 0 and algorithm.kl.where == "loss"

    def loss(batch: PackedBatch, scores: Tensor) -> tuple[Tensor, dict[str, float]]:
        if not len(batch.score_index):
            return _nothing(scores), {}
        fields = _fields(batch, scores.device)
        logprobs, entropy = scores[:, torch.from_numpy(batch.score_index).to(scores.device)]
        segments = torch.from_numpy(batch.segment_ids).to(scores.device)
        out = policy_loss(LossBatch(logprobs, fields["old_logprobs"], fields["advantages"], segments, len(batch.indices)), algorithm)
        policy_total = (fields["weights"] * out.loss_R).sum()
        total = policy_total
        log_ratio = logprobs.detach() - fields["old_logprobs"]
        report = {
            "loss/policy": float(policy_total),
            "entropy": float(entropy.detach().sum()) / num_tokens,
            "clip_share": float(out.clipped_R.sum()) / num_tokens,
            "ratio/abs_diff_mean": float(log_ratio.expm1().abs().sum()) / num_tokens,
            "ratio/log_abs_mean": float(log_ratio.abs().sum()) / num_tokens,
            "kl/old_k1": -float(log_ratio.sum()) / num_tokens,
            "kl/old": float((log_ratio.expm1() - log_ratio).sum()) / num_tokens,
        }
        if kl_in_loss:
            per_token = kl.kl_estimate(logprobs, fields["ref_logprobs"], algorithm.kl.kind)
            total = total + kl_coef * (fields["weights"] * per_token).sum()
            report["kl/ref"] = float(per_token.detach().sum()) / num_tokens
        if algorithm.entropy_coef > 0:
            total = total - algorithm.entropy_coef * (fields["weights"] * entropy).sum()
        return total * num_tokens, report

    return loss
