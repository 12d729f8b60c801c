"""Build the model chunks that a rank holds, and mark their parameters as Megatron's gradient reduction and norm expect."""

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from tandem.devices.parts import Parts
from tandem.qwen3_5.critic import Qwen3_5Critic
from tandem.qwen3_5.model import Qwen3_5Model
from tandem.qwen3_5.rules import Whole
from tandem.qwen3_5.weights import weight_map


def build_chunks(config: TransformerConfig, hf_config, parts: Parts, *, critic: bool = False, **vision: bool) -> list[Qwen3_5Model]:
    """The model chunks of this rank: one, or one for each virtual pipeline stage.

    Args:
        critic: with a value head in the place of the output embedding.
        vision: `freeze_vision` and `vision_tp` of the model.
    """
    model = Qwen3_5Critic if critic else Qwen3_5Model
    chunks = []
    for stage in range(config.virtual_pipeline_model_parallel_size or 1):
        vp_stage = stage if config.virtual_pipeline_model_parallel_size else None
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage)
        with torch.device(torch.cuda.current_device()):  # Megatron makes router and shared gate on the default device
            chunk = model(config, hf_config, parts, pre_process=first, post_process=last, vp_stage=vp_stage, **vision)
        mark_parameters(chunk)
        chunks.append(chunk)
    return chunks


def mark_parameters(chunk: Qwen3_5Model) -> None:
    """Say of every parameter whether it is an expert's and whether ranks hold different parts of it.

    Megatron-Core 0.16.1 marks experts only when EP > 1: with TP > 1 and ETP = 1 their gradients would be reduced over the wrong ranks. A
    weight that is cut but not marked so counts once in the gradient norm instead of once a rank. Both would be silent.
    """
    parameters = dict(chunk.named_parameters())
    for entry in weight_map(chunk):
        parameter = parameters[entry.megatron]
        if entry.expert:
            parameter.allreduce = False
        parameter.tensor_model_parallel = not isinstance(entry.rule, Whole)
