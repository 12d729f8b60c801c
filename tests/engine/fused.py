"""Fused layers on a CPU: this file takes MindSpeed's part and puts modules of plain PyTorch in the place of Transformer Engine's.

Ranks import it; pytest never does.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import torch
from megatron.core.extensions import transformer_engine_spec_provider as provider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.devices import cpu
from tandem.qwen3_5.attention import PortableCoreAttention
from tandem.qwen3_5.gated_delta import chunk_layout, gated_delta_rule
from tandem.qwen3_5.norm import RMSNorm
from tests.engine import ranks

calls: dict[str, int] = {}


def counted(name: str, base: type) -> type:
    """`base` that counts its forward passes."""

    def forward(self, *args, **kwargs):
        calls[name] = calls.get(name, 0) + 1
        return base.forward(self, *args, **kwargs)

    return type(name, (base,), {"forward": forward})


class GroupedLinear(torch.nn.Module):
    """One weight an expert, as Transformer Engine and MindSpeed name them; the caller reduces over tensor-parallel ranks, as theirs."""

    split = 0  # dimension of the weight that tensor-parallel ranks share

    def __init__(self, num_gemms, input_size, output_size, *, config, init_method, pg_collection, **_):
        super().__init__()
        size = [output_size, input_size]
        size[self.split] //= pg_collection.expt_tp.size()
        for index in range(num_gemms):
            self.register_parameter(f"weight{index}", torch.nn.Parameter(torch.empty(*size, dtype=config.params_dtype)))

    def forward(self, x, m_splits):
        calls[type(self).__name__] = calls.get(type(self).__name__, 0) + 1
        parts = x.split(list(m_splits))
        return torch.cat([part @ getattr(self, f"weight{index}").t() for index, part in enumerate(parts)]), None


class RowGroupedLinear(GroupedLinear):
    split = 1


def chunk_gated_delta_rule(q, k, v, g, beta, *, cu_seqlens, use_qk_l2norm_in_kernel):
    """FLA's function, packed: batch 1, boundaries on the device, queries and keys not yet normalised."""
    calls["fla"] = calls.get("fla", 0) + 1
    assert use_qk_l2norm_in_kernel and q.size(0) == 1 and g.dtype == torch.float32
    layout = chunk_layout(cu_seqlens.cpu(), v.size(2) * (q.size(-1) + v.size(-1)))
    return gated_delta_rule(*(x[0] for x in (q, k, v, g, beta)), layout)[0][None], None


def install() -> None:
    provider.TEColumnParallelLinear = counted("TEColumnParallelLinear", ColumnParallelLinear)
    provider.TERowParallelLinear = counted("TERowParallelLinear", RowParallelLinear)
    provider.TENorm = counted("TENorm", RMSNorm)
    provider.TEDotProductAttention = counted("TEDotProductAttention", PortableCoreAttention)
    provider.TEColumnParallelGroupedLinear, provider.TERowParallelGroupedLinear = GroupedLinear, RowGroupedLinear
    for name in ("mindspeed", "fla", "fla.ops", "fla.ops.gated_delta_rule"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = chunk_gated_delta_rule
    cpu.FUSED_LAYERS, cpu.FUSED_DELTA_RULE = "mindspeed", "fla"


FUSED = {"model": {"dtype": "float32", "layers": "fused"}}


def score_and_train(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **call) -> dict:
    install()
    return ranks.score_and_train(model_path, parallel, sequences, **call, **FUSED)


def export_tensors(model_path: str, parallel: ParallelConfig) -> dict[str, np.ndarray]:
    install()
    return ranks.export_tensors(model_path, parallel, **FUSED)


def count_calls(model_path: str, parallel: ParallelConfig, sequences: list[Sequence]) -> dict[str, int]:
    """Forward passes of each kind of fused module when one micro-batch is scored."""
    install()
    engine = ranks.make_engine(model_path, parallel, **FUSED)
    engine.scores(sequences[:1], temperature=1.0)
    return calls
