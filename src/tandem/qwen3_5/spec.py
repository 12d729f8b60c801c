"""Which module plays which part in a layer. The portable ones run on every device."""

from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.ssm.gated_delta_net import GatedDeltaNetSubmodules
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules, get_transformer_layer_offset

from tandem.devices.parts import Parts
from tandem.qwen3_5.attention import GatedSelfAttention, PortableCoreAttention
from tandem.qwen3_5.delta_net import PackedGatedDeltaNet
from tandem.qwen3_5.norm import OnesRMSNorm, RMSNorm
from tandem.qwen3_5.routing import ReplayedLayer


class PortableBackend(LocalSpecProvider):
    """Plain PyTorch for what Transformer Engine and FLA provide on a GPU."""

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return RMSNorm

    def core_attention(self) -> type:
        return PortableCoreAttention


class FusedBackend(TESpecProvider):
    """Transformer Engine's modules, or those that MindSpeed has put in their place; norms stay apart from the linears behind them."""

    def fuse_layernorm_and_linear(self) -> bool:
        return False


def decoder_spec(
    config: TransformerConfig, layer_types: list[str], parts: Parts, vp_stage: int | None = None
) -> TransformerBlockSubmodules:
    """Specs of the layers of this pipeline (and virtual) stage; `layer_types` is transformers' list for the whole model."""
    backend = FusedBackend() if parts.fused_layers else PortableBackend()
    column, row, norm = backend.column_parallel_linear(), backend.row_parallel_linear(), backend.layer_norm(rms_norm=True)
    delta_net = ModuleSpec(
        PackedGatedDeltaNet,
        params={"fla": parts.fla},
        submodules=GatedDeltaNetSubmodules(in_proj=column, out_norm=OnesRMSNorm, out_proj=row),
    )
    attention = ModuleSpec(
        GatedSelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=column, core_attention=backend.core_attention(), linear_proj=row, q_layernorm=norm, k_layernorm=norm
        ),
    )
    if config.num_moe_experts:
        mlp = get_moe_module_spec_for_backend(backend, num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm)
    else:
        mlp = ModuleSpec(MLP, submodules=MLPSubmodules(linear_fc1=column, linear_fc2=row))
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    here = layer_types[first : first + get_num_layers_to_build(config, vp_stage=vp_stage)]
    layers = [
        ModuleSpec(
            ReplayedLayer if config.num_moe_experts else TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=norm,
                self_attention=delta_net if layer_type == "linear_attention" else attention,
                self_attn_bda=get_bias_dropout_add,
                pre_mlp_layernorm=norm,
                mlp=mlp,
                mlp_bda=get_bias_dropout_add,
            ),
        )
        for layer_type in here
    ]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=norm)
