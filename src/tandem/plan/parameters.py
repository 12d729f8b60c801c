"""Every parameter of a training rank: the plan's own arithmetic, in the order of Megatron's modules, checked against the built model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

from tandem.plan.layout import Layout
from tandem.plan.shapes import Shapes


@dataclass(frozen=True)
class Parameter:
    name: str  # as in the built model, behind `decoder.layers.N.` where it is a layer's
    shape: tuple[int, ...]
    expert: bool = False
    frozen: bool = False
    shared: bool = False  # the embedding and its tied copy, which Megatron keeps in a bucket of their own

    @cached_property
    def numel(self) -> int:
        return prod(self.shape)


def chunk_parameters(
    shapes: Shapes, layout: Layout, layers: range, *, freeze_vision: bool = False, vision_tp: bool = False, critic: bool = False
) -> list[Parameter]:
    """Parameters of one model chunk, which holds `layers`; the same on all ranks of a pipeline stage. Of a critic: with a value head."""
    first, last = layers.start == 0, layers.stop == shapes.num_layers
    rows = shapes.vocab_size // layout.tp
    shared = shapes.tied and layout.pp > 1 and not critic
    found: list[Parameter] = []
    if first:
        cut = layout.tp if vision_tp else 1
        names = _vision(shapes, cut, "qkv.linear" if vision_tp else "qkv")
        found += [Parameter(f"visual.model.{name}", shape, frozen=freeze_vision) for name, shape in names]
        found.append(Parameter("embedding.word_embeddings.weight", (rows, shapes.hidden_size), shared=shared))
    for layer in layers:
        found += _layer_parameters(shapes, shapes.layer_types[layer], layout.tp, layout.ep, layout.etp)
    if last:
        found.append(Parameter("decoder.final_layernorm.weight", (shapes.hidden_size,)))
        if critic:
            found += [Parameter("value_head.weight", (1, shapes.hidden_size)), Parameter("value_head.bias", (1,))]
        elif not (first and shapes.tied):
            found.append(Parameter("output_layer.weight", (rows, shapes.hidden_size), shared=shared))
    return found


def stage_parameters(shapes: Shapes, layout: Layout, stage: int, **options: bool) -> list[list[Parameter]]:
    """Parameters of each model chunk of a pipeline stage; options as of `chunk_parameters`."""
    return [chunk_parameters(shapes, layout, layers, **options) for layers in layout.chunks(stage, shapes.num_layers)]


def _vision(shapes: Shapes, cut: int, qkv: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    v = shapes.vision
    width, merged = v.hidden_size, v.hidden_size * v.patches_of_token
    yield "patch_embed.proj.weight", (width, v.in_channels, v.temporal_patch_size, v.patch_size, v.patch_size)
    yield "patch_embed.proj.bias", (width,)
    yield "pos_embed.weight", (v.num_position_embeddings, width)
    for block in range(v.depth):
        b = f"blocks.{block}."
        for norm in ("norm1", "norm2"):
            yield f"{b}{norm}.weight", (width,)
            yield f"{b}{norm}.bias", (width,)
        yield f"{b}attn.{qkv}.weight", (3 * width // cut, width)
        yield f"{b}attn.{qkv}.bias", (3 * width // cut,)
        yield f"{b}attn.proj.weight", (width, width // cut)
        yield f"{b}attn.proj.bias", (width,)
        yield from _mlp_with_bias(f"{b}mlp.", width, v.intermediate_size // cut, width)
    yield "merger.norm.weight", (width,)
    yield "merger.norm.bias", (width,)
    yield from _mlp_with_bias("merger.", merged, merged // cut, v.out_hidden_size)


def _mlp_with_bias(prefix: str, inputs: int, width: int, outputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}linear_fc1.weight", (width, inputs)
    yield f"{prefix}linear_fc1.bias", (width,)
    yield f"{prefix}linear_fc2.weight", (outputs, width)
    yield f"{prefix}linear_fc2.bias", (outputs,)


@cache
def _layer_parameters(shapes: Shapes, layer_type: str, tp: int, ep: int, etp: int) -> tuple[Parameter, ...]:
    """Of one decoder layer, the same for all of its kind."""
    return tuple(Parameter(name, shape, ".local_experts." in name) for name, shape in _layer(shapes, layer_type, tp, ep, etp))


def _layer(s: Shapes, layer_type: str, tp: int, ep: int, etp: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = s.hidden_size
    yield "input_layernorm.weight", (hidden,)
    if layer_type == "full_attention":
        yield "self_attention.linear_proj.weight", (hidden, s.num_attention_heads * s.head_dim // tp)
        yield "self_attention.linear_qkv.weight", ((2 * s.num_attention_heads + 2 * s.num_key_value_heads) * s.head_dim // tp, hidden)
        yield "self_attention.q_layernorm.weight", (s.head_dim,)
        yield "self_attention.k_layernorm.weight", (s.head_dim,)
    else:
        conv = 2 * s.key_dim + s.value_dim
        yield "self_attention.dt_bias", (s.linear_num_value_heads // tp,)
        yield "self_attention.A_log", (s.linear_num_value_heads // tp,)
        yield "self_attention.in_proj.weight", ((conv + s.value_dim + 2 * s.linear_num_value_heads) // tp, hidden)
        yield "self_attention.conv1d.weight", (conv // tp, 1, s.linear_conv_kernel_dim)
        yield "self_attention.out_norm.weight", (s.linear_value_head_dim,)
        yield "self_attention.out_proj.weight", (hidden, s.value_dim // tp)
    yield "pre_mlp_layernorm.weight", (hidden,)
    if not s.num_experts:
        yield from _mlp("mlp.", hidden, s.mlp_size // tp)
        return
    yield "mlp.router.weight", (s.num_experts, hidden)
    for expert in range(s.num_experts // ep):
        yield from _mlp(f"mlp.experts.local_experts.{expert}.", hidden, s.mlp_size // etp)
    yield "mlp.shared_experts.gate_weight", (1, hidden)
    yield from _mlp("mlp.shared_experts.", hidden, s.shared_size // tp)


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}linear_fc1.weight", (2 * width, hidden)
    yield f"{prefix}linear_fc2.weight", (hidden, width)
