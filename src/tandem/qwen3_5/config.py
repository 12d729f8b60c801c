"""From a Hugging Face Qwen3.5 config to Megatron's."""

from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import AutoConfig
from transformers.activations import ACT2FN

from tandem.config.layout import check_layout
from tandem.config.modelvalues import check_values
from tandem.config.schema import Config
from tandem.devices.parts import Parts
from tandem.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def read_config(model_path: str):
    """transformers' config of a folder or hub name. Raises UserError when transformers refuses it or Tandem does not compute it."""
    try:
        hf_config = AutoConfig.from_pretrained(model_path)
        ACT2FN[hf_config.vision_config.hidden_act]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise UserError(
            f"transformers cannot read the config of {model_path}",
            str(error) or type(error).__name__,
            "use the config.json that belongs to these weights",
        ) from error
    check_values(hf_config.to_dict(), f"the config of {model_path}")
    return hf_config


def is_moe(hf_text_config) -> bool:
    return getattr(hf_text_config, "num_experts", 0) > 0


def transformer_config(hf_config, config: Config, parts: Parts) -> TransformerConfig:
    """Raises UserError for a model that Tandem does not compute, or a layout that this model cannot have."""
    hf, parallel = hf_config.text_config, config.parallel
    check_values(hf_config.to_dict(), "the model's config")
    check_layout(hf.to_dict(), parallel, hf_config.vision_config.to_dict())
    dtype = DTYPES[config.model.dtype]
    optional: dict[str, Any] = {}
    if is_moe(hf):
        optional.update(
            num_moe_experts=hf.num_experts,
            moe_router_topk=hf.num_experts_per_tok,
            moe_ffn_hidden_size=hf.moe_intermediate_size,
            moe_shared_expert_intermediate_size=hf.shared_expert_intermediate_size,
            moe_shared_expert_gate=True,
            moe_grouped_gemm=parts.fused_layers,
            moe_router_load_balancing_type="aux_loss" if config.model.router_aux_loss_coef else "none",
            moe_router_dtype="fp32",
            moe_aux_loss_coeff=config.model.router_aux_loss_coef,
            moe_z_loss_coeff=config.model.router_z_loss_coef or None,
        )
    if config.trainer.recompute == "full":
        optional.update(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    elif config.trainer.recompute == "selective":
        optional.update(recompute_granularity="selective", recompute_modules=["core_attn", "moe" if is_moe(hf) else "mlp"])
    sequence_parallel = parallel.tp > 1 if parallel.sp is None else parallel.sp
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=getattr(hf, "intermediate_size", None) or hf.moe_intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=hf.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        layernorm_zero_centered_gamma=True,
        qk_layernorm=True,
        attention_output_gate=True,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # experimental_attention_variant stays None: its check refuses context parallelism
        linear_conv_kernel_dim=hf.linear_conv_kernel_dim,
        linear_key_head_dim=hf.linear_key_head_dim,
        linear_value_head_dim=hf.linear_value_head_dim,
        linear_num_key_heads=hf.linear_num_key_heads,
        linear_num_value_heads=hf.linear_num_value_heads,
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        virtual_pipeline_model_parallel_size=parallel.vpp or None,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
        sequence_parallel=sequence_parallel,
        # With interleaved stages the batched form gives silently wrong gradients.
        overlap_p2p_comm=bool(parallel.vpp),
        batch_p2p_comm=not parallel.vpp,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # asked for with variable lengths, of a dense model too
        deallocate_pipeline_outputs=True,
        calculate_per_token_loss=True,
        hetereogenous_dist_checkpoint=True,  # Megatron's spelling; layers of two kinds
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        perform_initialization=False,  # the checkpoint fills every parameter
        transformer_impl="local",
        deterministic_mode=config.trainer.deterministic,
        **optional,
    )
