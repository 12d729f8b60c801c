"""Gated DeltaNet layer on packed sequences, under tensor and context parallelism. Parameters and projections are Megatron's."""

import torch
import torch.nn.functional as F
from megatron.core.ssm import gated_delta_net
from megatron.core.ssm.mamba_context_parallel import _all_to_all_cp2hp, _all_to_all_hp2cp
from torch import Tensor

from tandem.qwen3_5.causal_conv import causal_conv
from tandem.qwen3_5.gated_delta import gated_delta_rule
from tandem.qwen3_5.layout import SequenceLayout

# Megatron's constructor refuses to run without FLA, whose kernel only its own forward calls; ours is below.
gated_delta_net.HAVE_FLA = True


class PackedGatedDeltaNet(gated_delta_net.GatedDeltaNet):
    """Under context parallelism the ranks trade sequence slices for heads (all-to-all), run whole sequences, and trade back."""

    def __init__(self, *args, fla: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.rule = fla_rule if fla else portable_rule

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, packed_seq_params: SequenceLayout | None = None, **_):
        """hidden_states [L or L / tp, 1, hidden] -> (same shape, bias)."""
        assert packed_seq_params is not None, "Qwen3.5 runs on a SequenceLayout"
        layout, cp_group = packed_seq_params, self.pg_collection.cp
        cp_size, cp_rank = cp_group.size(), cp_group.rank()
        mixed, _ = self.in_proj(hidden_states)  # [L, 1, D / tp]
        key_dim, value_dim, num_value_heads = (n // self.tp_size for n in (self.qk_dim, self.v_dim, self.num_value_heads))
        sizes = [key_dim, key_dim, value_dim, value_dim, num_value_heads, num_value_heads]  # q, k, v, z, b, a
        conv_weight, A_log, dt_bias = self.conv1d.weight.squeeze(1), self.A_log, self.dt_bias
        if cp_size > 1:
            per_part = [part.chunk(cp_size, -1) for part in mixed.split(sizes, -1)]
            mixed = torch.cat([part[rank] for rank in range(cp_size) for part in per_part], -1)
            mixed = _all_to_all_cp2hp(mixed, cp_group)[layout.ungathered_T]  # [T, 1, D / tp / cp]
            conv_weight = torch.cat([part.chunk(cp_size)[cp_rank] for part in conv_weight.split(sizes[:3])])
            A_log, dt_bias = A_log.chunk(cp_size)[cp_rank], dt_bias.chunk(cp_size)[cp_rank]
            sizes = [size // cp_size for size in sizes]
        qkv, z, b, a = mixed.squeeze(1).split([sum(sizes[:3]), *sizes[3:]], -1)
        q, k, v = causal_conv(qkv, conv_weight, layout.position_T).split(sizes[:3], -1)
        q, k = (x.unflatten(-1, (-1, self.key_head_dim)) for x in (q, k))
        v, z = (x.unflatten(-1, (-1, self.value_head_dim)) for x in (v, z))
        decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
        out = self.rule(q, k, v, decay, b.float().sigmoid(), layout)
        out = (self.out_norm(out).float() * F.silu(z.float())).to(mixed.dtype).flatten(1)[:, None]
        if cp_size > 1:
            out = _all_to_all_hp2cp(out[layout.gathered_T], cp_group)
        return self.out_proj(out.contiguous())


def portable_rule(q_TGK: Tensor, k_TGK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, layout: SequenceLayout) -> Tensor:
    """[T, H, V] of packed sequences, as `gated_delta_rule`."""
    return gated_delta_rule(q_TGK, k_TGK, v_THV, g_TH, beta_TH, layout.chunks)[0]


def fla_rule(q_TGK: Tensor, k_TGK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, layout: SequenceLayout) -> Tensor:
    """The same by the kernel of flash-linear-attention (0.6 or later, which takes fewer key than value heads)."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    inputs = (x[None] for x in (q_TGK, k_TGK, v_THV, g_TH, beta_TH))
    out, _ = chunk_gated_delta_rule(*inputs, cu_seqlens=layout.cu_seqlens_q, use_qk_l2norm_in_kernel=True)
    return out[0]
