"""The vision tower in the trainer: transformers' own module, replicated on the ranks of the first pipeline stage.

Every tensor-parallel rank of that stage computes the same features of the same images; the gradient reaching them is the same too, so no
reduction is needed among them.
"""

from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from transformers import AutoModel


class VisionTower(MegatronModule):
    def __init__(self, config, hf_vision_config, freeze: bool = False):
        super().__init__(config)
        self.model = AutoModel.from_config(hf_vision_config, dtype=config.params_dtype, attn_implementation="sdpa")
        self.model.requires_grad_(not freeze)

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        """pixel_values [patches, patch_dim], image_grid_thw [images, 3] -> features [merged patches, hidden], images in order."""
        return self.model(pixel_values.to(self.config.params_dtype), grid_thw=image_grid_thw).pooler_output
