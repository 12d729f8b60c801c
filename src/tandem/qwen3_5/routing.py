"""Router replay: tokens go to the experts that the generator chose for them, weighed by the trainer's own router.

Trainer and generator round differently. A token whose last chosen and first passed-over expert are close then takes another way through the
network: a jump, where everything else differs by rounding. Replaying the choice takes the jump away (Ma et al. 2025, arXiv:2510.11370).
"""

from collections.abc import Callable, Iterable

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

UNKNOWN = -1  # in place of an expert's number: the router chooses by itself
TopK = Callable[..., tuple[Tensor, Tensor]]


class ReplayedTopK:
    """What Megatron's router asks in place of top-k. It counts the choices that were replayed, and those of them that it would have made
    otherwise; under recomputation only the pass with gradients counts."""

    def __init__(self) -> None:
        self.experts: Tensor | None = None  # [tokens of this rank, k]; None: nothing to replay
        self.training = False
        self.num_replayed: Tensor | int = 0
        self.num_changed: Tensor | int = 0

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, stock: TopK
    ) -> tuple[Tensor, Tensor]:
        """([tokens, k] scores, [tokens, k] numbers) of the experts to take. Args: scores: [tokens, experts]; stock: top-k itself."""
        values, own = stock(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if self.experts is None:
            return values, own
        assert self.experts.shape == own.shape, f"choices of shape {tuple(self.experts.shape)} for {tuple(own.shape)}"
        known = self.experts[:, :1] != UNKNOWN
        chosen = torch.where(known, self.experts, own)
        if torch.is_grad_enabled() or not self.training:
            is_own = (chosen[:, :, None] == own[:, None, :]).any(-1)
            self.num_replayed = self.num_replayed + known.sum() * topk
            self.num_changed = self.num_changed + (~is_own).sum()
        return scores.gather(1, chosen), chosen


class ReplayedLayer(TransformerLayer):
    """A layer with experts. Each forward, and each forward anew of recomputation, brings the choices of its own micro-batch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.replay = self.mlp.router.router_replay = ReplayedTopK()

    def forward(self, *args, packed_seq_params, **kwargs):
        experts = packed_seq_params.experts
        self.replay.training = self.training
        self.replay.experts = None if experts is None else experts[:, self.layer_number - 1].long()
        return super().forward(*args, packed_seq_params=packed_seq_params, **kwargs)


def take_counts(chunks: Iterable[torch.nn.Module]) -> tuple[int, int]:
    """(choices replayed, of these changed) in this rank's layers since the last call."""
    replays = [module.replay for chunk in chunks for module in chunk.modules() if isinstance(module, ReplayedLayer)]
    counts = sum(int(replay.num_replayed) for replay in replays), sum(int(replay.num_changed) for replay in replays)
    for replay in replays:
        replay.num_replayed = replay.num_changed = 0
    return counts
