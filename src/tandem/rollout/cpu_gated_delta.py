"""The core of a Gated DeltaNet layer inside vLLM on a CPU, for the dtypes and head sizes that vLLM's own kernels leave out.

vLLM hands over one step's tokens of all running sequences, decodes (one token each) first, then prefill chunks, and keeps two states per
sequence in its cache: the last W-1 inputs of the convolution and the recurrent state. Imported in vLLM worker processes only.

Shape letters: T tokens, S sequences, D convolution channels, W convolution width, H value heads, K key dim, V value dim.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name

from tandem.qwen3_5.gated_delta import chunk_layout, gated_delta_rule


def make_core(stock: Callable) -> Callable:
    """vLLM's custom operator `cpu_gdn_attention_core`: the stock one where its kernels fit, ours elsewhere."""

    def core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: LayerNameType) -> None:
        context = get_forward_context()
        layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
        if mixed_qkv.dtype == torch.bfloat16 and layer.head_k_dim == layer.head_v_dim and layer.head_k_dim in (64, 128):
            stock(mixed_qkv, b, a, core_attn_out, layer_name)
        elif context.attn_metadata is not None:  # None while vLLM profiles
            metadata = context.attn_metadata[layer.prefix]
            assert metadata.spec_sequence_masks is None, "no speculative decoding here"
            run_layer(layer, metadata, mixed_qkv, b, a, core_attn_out)

    return core


def run_layer(layer, metadata, mixed_TD: Tensor, b_TH: Tensor, a_TH: Tensor, out_THV: Tensor) -> None:
    """Fill `out_THV` for one step and advance the layer's cached states.

    Args:
        layer: vLLM's `QwenGatedDeltaNetAttention`.
        metadata: vLLM's `GDNAttentionMetadata` of this step.
        mixed_TD: projected queries, keys and values, before the convolution.
        b_TH, a_TH: projected write strength and decay, before their activations.
        out_THV: written in place.
    """
    conv_SDW, state_SHKV = cached_states(layer)
    slots, num_decodes = metadata.non_spec_state_indices_tensor.long(), metadata.num_decodes
    beta_TH = b_TH.float().sigmoid()
    g_TH = -layer.A_log.float().exp() * F.softplus(a_TH.float() + layer.dt_bias.float())
    if num_decodes:
        here, of = slice(0, num_decodes), slots[:num_decodes]
        y_SD, conv_SDW[of] = convolve_one(layer, mixed_TD[here], conv_SDW[of])
        q, k, v = split_heads(layer, y_SD)
        out, state_SHKV[of] = step_one(q, k, v, g_TH[here], beta_TH[here], state_SHKV[of])
        out_THV[here] = out.to(out_THV.dtype)
    if metadata.num_prefills:
        of = slots[num_decodes : num_decodes + metadata.num_prefills]
        is_continued = metadata.has_initial_state[num_decodes : num_decodes + metadata.num_prefills].view(-1, 1, 1)
        starts = metadata.non_spec_query_start_loc[num_decodes : num_decodes + metadata.num_prefills + 1].long()
        here, cu_seqlens = slice(int(starts[0]), int(starts[-1])), starts - starts[0]
        # `where`, not a product: a slot that nobody used may hold NaN
        y_TD, conv_SDW[of] = convolve_packed(layer, mixed_TD[here], torch.where(is_continued, conv_SDW[of], 0), cu_seqlens)
        q, k, v = split_heads(layer, y_TD)
        initial = torch.where(is_continued[..., None], state_SHKV[of], 0)
        out, final = gated_delta_rule(q, k, v, g_TH[here], beta_TH[here], step_layout(metadata, cu_seqlens, v), initial)
        out_THV[here], state_SHKV[of] = out.to(out_THV.dtype), final.to(state_SHKV.dtype)


def cached_states(layer) -> tuple[Tensor, Tensor]:
    """Views of vLLM's cache: convolution inputs [slots, D, W-1], and recurrent states [slots, H, K, V].

    vLLM shapes the latter [slots, H, V, K]; its CPU kernels too read the memory as [K, V].
    """
    conv, state = layer.kv_cache[0], layer.kv_cache[1]
    num_slots, num_heads, value_dim, key_dim = state.shape
    return conv if is_conv_state_dim_first() else conv.transpose(1, 2), state.view(num_slots, num_heads, key_dim, value_dim)


def conv_weight(layer) -> Tensor:
    """[D, W]. In bf16 vLLM may keep the weight packed for its kernel, with a plain copy beside it."""
    weight = getattr(layer.conv1d, "_cpu_unpacked_conv_weight", layer.conv1d.weight)
    return weight.view(weight.size(0), weight.size(-1))


def convolve_one(layer, x_SD: Tensor, history_SDW: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each sequence. Returns the activations [S, D] and the next history [S, D, W-1]."""
    window = torch.cat([history_SDW.to(x_SD.dtype), x_SD.unsqueeze(-1)], -1)
    return F.silu((window * conv_weight(layer)).sum(-1)), window[..., 1:].to(history_SDW.dtype)


def convolve_packed(layer, x_TD: Tensor, history_SDW: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Whole sequences, packed, each after its own history. Returns the activations [T, D] and the next history [S, D, W-1]."""
    weight_DW, reach = conv_weight(layer), history_SDW.size(-1)
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    pieces = zip(history_SDW.to(x_TD.dtype).transpose(1, 2), x_TD.split(lengths))
    extended = torch.cat([part for pair in pieces for part in pair])  # every sequence with its history in front
    num_outputs = extended.size(0) - reach
    y = sum(extended[tap : tap + num_outputs] * weight_DW[:, tap] for tap in range(reach + 1))
    sequence = torch.arange(len(lengths))
    of_token = torch.arange(x_TD.size(0)) + torch.repeat_interleave(sequence * reach, cu_seqlens.diff())
    last = (cu_seqlens[1:] + sequence * reach)[:, None] + torch.arange(reach)
    return F.silu(y[of_token]), extended[last].transpose(1, 2).to(history_SDW.dtype)


def split_heads(layer, y_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys [T, H, K], repeated to the value heads, and values [T, H, V]."""
    q, k, v = (x[0] for x in layer.rearrange_mixed_qkv(y_TD))
    repeats = v.size(1) // q.size(1)
    return q.repeat_interleave(repeats, 1), k.repeat_interleave(repeats, 1), v


def step_one(q_SHK: Tensor, k_SHK: Tensor, v_SHV: Tensor, g_SH: Tensor, beta_SH: Tensor, state_SHKV: Tensor) -> tuple[Tensor, Tensor]:
    """The gated delta rule for one token of each sequence. Returns outputs [S, H, V] fp32 and the next states, in the states' dtype."""
    q, k, v = normalise(q_SHK) * q_SHK.size(-1) ** -0.5, normalise(k_SHK), v_SHV.float()
    state = state_SHKV.float() * g_SH.exp()[..., None, None]
    read = (state * k.unsqueeze(-1)).sum(-2)
    state = state + k.unsqueeze(-1) * (beta_SH.unsqueeze(-1) * (v - read)).unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(-2), state.to(state_SHKV.dtype)


def normalise(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def step_layout(metadata, cu_seqlens: Tensor, v_THV: Tensor):
    """The chunks of this step's prefills: made by the first layer, kept on the metadata that all layers of a step share."""
    layout = getattr(metadata, "tandem_layout", None)
    if layout is None:
        layout = metadata.tandem_layout = chunk_layout(cu_seqlens, 2 * v_THV[0].numel())  # keys are as wide as values
    return layout
