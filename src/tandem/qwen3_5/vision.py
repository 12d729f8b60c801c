"""The vision tower in the trainer, on the ranks of the first pipeline stage: transformers' own module.

Every tensor-parallel rank of that stage computes the features of the same images: each of them the whole, or with `parallel.vision_tp` each
its heads and its channels. Features, and the gradient that reaches them, are the same on all of these ranks either way.
"""

import copy

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn
from transformers import AutoModel


class VisionTower(MegatronModule):
    def __init__(self, config: TransformerConfig, hf_vision_config, tp_group, *, cut: bool = False, freeze: bool = False):
        super().__init__(config)
        self.model = AutoModel.from_config(hf_vision_config, dtype=config.params_dtype, attn_implementation="sdpa")
        self.cut = cut
        if cut:
            _cut(self.model, config, tp_group)
        self.model.requires_grad_(not freeze)
        if config.recompute_granularity == "full" and not freeze:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        """pixel_values [patches, patch_dim], image_grid_thw [images, 3] -> features [merged patches, hidden], images in order."""
        return self.model(pixel_values.to(self.config.params_dtype), grid_thw=image_grid_thw).pooler_output

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None) -> dict:
        """For Megatron's checkpoints, which would take transformers' module for one that all ranks hold alike."""
        cut = {}  # parameter -> the dimension that ranks share
        for name, module in self.named_modules():
            if isinstance(module, Column):
                cut |= {f"{name}.weight": 0, f"{name}.bias": 0}
            elif isinstance(module, Row):
                cut[f"{name}.weight"] = 1
        return make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix, cut, sharded_offsets)


def _cut(model: nn.Module, config: TransformerConfig, tp_group) -> None:
    """Put Megatron's parallel linears in the place of the tower's."""
    config = copy.copy(config)
    config.sequence_parallel = False  # every rank has all patches
    for block in model.blocks:
        attention = block.attn
        attention.qkv = HeadMajorQKV(attention.qkv, attention.num_heads, config, tp_group)
        attention.num_heads //= tp_group.size()
        attention.proj = Row(attention.proj, config, tp_group)
    for mlp in [model.merger, *(block.mlp for block in model.blocks)]:
        mlp.linear_fc1, mlp.linear_fc2 = Column(mlp.linear_fc1, config, tp_group), Row(mlp.linear_fc2, config, tp_group)


def _nothing(_weight: Tensor) -> None:
    """No initial values: the checkpoint fills every parameter."""


class Column(ColumnParallelLinear):
    def __init__(self, linear: nn.Linear, config: TransformerConfig, tp_group):
        settings = {"bias": True, "gather_output": False, "init_method": _nothing, "tp_group": tp_group}
        super().__init__(linear.in_features, linear.out_features, config=config, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Row(RowParallelLinear):
    def __init__(self, linear: nn.Linear, config: TransformerConfig, tp_group):
        settings = {"bias": True, "input_is_parallel": True, "skip_bias_add": False, "init_method": _nothing, "tp_group": tp_group}
        super().__init__(linear.in_features, linear.out_features, config=config, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class HeadMajorQKV(nn.Module):
    """Query, key and value rows of a head stand together, so that a cut by rank is a plain cut, which checkpoints can cut anew.

    The parameters have another name than those of the uncut tower, whose order is another: a checkpoint of one does not load as the other.
    """

    def __init__(self, linear: nn.Linear, num_heads: int, config: TransformerConfig, tp_group):
        super().__init__()
        self.linear, self.num_heads = Column(linear, config, tp_group), num_heads // tp_group.size()

    def forward(self, x: Tensor) -> Tensor:
        """[patches, dim] -> [patches, 3 * heads here * head_dim]: all queries, keys, values, as transformers' module reads them."""
        return self.linear(x).unflatten(-1, (self.num_heads, 3, -1)).transpose(1, 2).flatten(1)
