"""What a policy loss reads and gives."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossBatch:
    """The response tokens of one micro-batch, sequence after sequence. R: response tokens; all of a sequence's are here."""

    logprobs_R: Tensor  # under the present policy, with gradient
    old_logprobs_R: Tensor
    advantages_R: Tensor
    segment_ids_R: Tensor  # int64, which sequence of the micro-batch
    num_segments: int


@dataclass(frozen=True)
class LossOutput:
    """Per token, neither weighted nor summed: the caller's token weights do that."""

    loss_R: Tensor
    clipped_R: Tensor  # bool: the token's gradient was cut by the clip
