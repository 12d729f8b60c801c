"""Qwen3.5's full attention: grouped heads, normed queries and keys, 3-axis rope, output gate. Parameters and projections are Megatron's."""

from functools import partial

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from tandem.qwen3_5.layout import SequenceLayout, apply_rope


class GatedSelfAttention(SelfAttention):
    """Megatron's SelfAttention with rope taken from the layout: Megatron would count positions anew from each sequence's start."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, packed_seq_params: SequenceLayout | None = None, **_):
        """hidden_states [L or L / tp, 1, hidden] -> (same shape, bias)."""
        assert packed_seq_params is not None, "Qwen3.5 runs on a SequenceLayout"
        layout = packed_seq_params
        query, key, value, gate = (
            x.squeeze(1) for x in self.get_query_key_value_tensors(hidden_states, output_gate=True)
        )  # [L, heads, dim]
        query, key = (apply_rope(x, layout.cos, layout.sin) for x in (query, key))
        attend = partial(self.core_attention, attn_mask_type=AttnMaskType.causal, packed_seq_params=layout)
        if self.checkpoint_core_attention and self.training:
            out = tensor_parallel.checkpoint(attend, False, query, key, value, None)
        else:
            out = attend(query, key, value, None)
        out = out.reshape(out.size(0), 1, -1)  # fused attention gives its heads flattened
        out = out * torch.sigmoid(gate.reshape(out.shape).float()).to(out.dtype)
        return self.linear_proj(out)


class PortableCoreAttention(MegatronModule):
    """Causal attention on packed sequences with PyTorch's own kernel; under context parallelism keys and values are gathered."""

    def __init__(
        self,
        config,
        layer_number,
        attn_mask_type,
        attention_type,
        attention_dropout=None,
        softmax_scale=None,
        cp_comm_type=None,
        pg_collection=None,
    ):
        super().__init__(config)
        self.cp_group = pg_collection.cp
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        attn_mask_type: AttnMaskType,
        packed_seq_params: SequenceLayout,
    ) -> Tensor:
        """query [L, heads, dim], key and value [L, groups, dim] -> [L, heads, dim]."""
        layout = packed_seq_params
        cp_size = self.cp_group.size()
        if cp_size > 1:
            key, value = (gather_from_sequence_parallel_region(x, group=self.cp_group)[layout.ungathered_T] for x in (key, value))
        outputs, start = [], 0
        for begin, end in zip(layout.boundaries[:-1], layout.boundaries[1:]):
            length = (end - begin) // cp_size
            q, k, v = (x.transpose(0, 1)[None] for x in (query[start : start + length], key[begin:end], value[begin:end]))
            if cp_size > 1:
                at = layout.local_L[start : start + length]
                mask = at[:, None] >= torch.arange(begin, end, device=at.device)[None]
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True)
            else:
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
            outputs.append(out[0].transpose(0, 1))
            start += length
        return torch.cat(outputs)
