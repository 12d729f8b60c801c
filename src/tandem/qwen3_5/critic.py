"""The same model with one number a token in the place of log-probs: the critic."""

from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.module import MegatronModule
from torch import Tensor, nn

from tandem.qwen3_5.model import ModelInput, Qwen3_5Model


class ValueHead(nn.Module):
    """hidden -> value, in fp32; 0 for every state until it has learned. The same on all tensor-parallel ranks."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., 1] fp32."""
        return nn.functional.linear(hidden.float(), self.weight, self.bias)


class Qwen3_5Critic(Qwen3_5Model):
    """`forward` gives [1, T] on the last pipeline stage: at each token the value of the state after it, in which the next is chosen."""

    is_critic = True

    def _add_head(self, vocab_size: int) -> None:
        self.share_embeddings_and_output_weights = False  # there is no output embedding
        if self.post_process:
            self.value_head = ValueHead(self.config.hidden_size)

    def _score(self, hidden: Tensor, batch: ModelInput) -> Tensor:
        # Every tensor-parallel rank has all of the head and computes the whole loss: its gradient is whole, and is not summed over them.
        if self.config.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return self._whole_sequences(self.value_head(hidden[:, 0]).t(), batch.layout)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict[str, Any] | None = None) -> dict[str, Any]:
        """Without what Megatron's language models say of their output embedding."""
        return MegatronModule.sharded_state_dict(self, prefix, sharded_offsets, metadata)
