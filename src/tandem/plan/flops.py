"""Floating-point operations of the model: matrix products, attention pairs, the delta rule's chunks. An embedding look-up is none.

A product of [m, k] by [k, n] is 2 m k n. Backward is twice forward. Recompute and the second pass over the logits are work, not use.
"""

from dataclasses import dataclass

from tandem.plan.batch import MicroBatch
from tandem.plan.shapes import Shapes

CHUNK = 64  # tokens of a chunk of the delta rule on an accelerator


@dataclass(frozen=True)
class Flops:
    """Of one sequence, forward."""

    layers: float
    logits: float
    vision: float

    @property
    def forward(self) -> float:
        return self.layers + self.logits + self.vision

    def without_head(self) -> "Flops":
        """Of a critic: one value a token in the place of the logits."""
        return Flops(self.layers, 0.0, self.vision)

    def useful(self, *, freeze_vision: bool = False) -> float:
        """Forward and backward, what MFU counts. A frozen vision tower has no backward pass."""
        return 3 * self.forward - (2 * self.vision if freeze_vision else 0.0)

    def done(self, recompute: str, *, freeze_vision: bool = False) -> float:
        """What a device really computes: the logits are made again in the backward pass, layers as `recompute` says."""
        again = {"none": 0.0, "selective": 0.7, "full": 1.0}[recompute]  # experts and attention are most of a layer
        vision = self.vision if recompute == "full" and not freeze_vision else 0.0
        return self.useful(freeze_vision=freeze_vision) + self.logits + again * self.layers + vision


def batch_flops(s: Shapes, batch: MicroBatch) -> Flops:
    """Of the whole model on one micro-batch, over all its ranks."""
    tokens = batch.num_tokens
    pairs = sum(length * (length + 1) / 2 for length in batch.lengths)
    layers = 0.0
    for kind in s.layer_types:
        if kind == "full_attention":
            width = s.num_attention_heads * s.head_dim
            layers += 2 * tokens * s.hidden_size * (3 * width + 2 * s.num_key_value_heads * s.head_dim) + 4 * pairs * width
        else:
            layers += 2 * tokens * s.hidden_size * (2 * s.key_dim + 3 * s.value_dim + 2 * s.linear_num_value_heads)
            layers += 2 * tokens * (2 * s.key_dim + s.value_dim) * s.linear_conv_kernel_dim
            layers += tokens * s.linear_num_value_heads * _delta_flops(s)
        if s.num_experts:
            layers += 2 * tokens * s.hidden_size * (s.num_experts + 3 * (s.num_experts_per_tok * s.mlp_size + s.shared_size))
        else:
            layers += 2 * tokens * s.hidden_size * 3 * s.mlp_size
    return Flops(layers, 2 * tokens * s.hidden_size * s.vocab_size, _vision_flops(s, batch))


def _delta_flops(s: Shapes) -> float:
    """Of a token and value head: rows against keys, the chunk's triangular solve, state read and written, values mixed."""
    K, V = s.linear_key_head_dim, s.linear_value_head_dim
    return 2 * (2 * CHUNK * K + CHUNK * CHUNK / 3 + 2 * K * V + K * V + 2 * CHUNK * V)


def _vision_flops(s: Shapes, batch: MicroBatch) -> float:
    v = s.vision
    patches = batch.num_image_tokens * v.patches_of_token
    of_image = patches / batch.num_images if batch.num_images else 0
    block = 2 * patches * v.hidden_size * (4 * v.hidden_size + 2 * v.intermediate_size) + 4 * patches * of_image * v.hidden_size
    merged = v.hidden_size * v.patches_of_token
    merger = 2 * batch.num_image_tokens * merged * (merged + v.out_hidden_size)
    return v.depth * block + 2 * patches * v.patch_dim * v.hidden_size + merger
