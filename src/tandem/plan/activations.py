"""Bytes that one micro-batch keeps between its forward and its backward pass on a training rank, layer by layer.

Counted from what autograd saves in the modules of `qwen3_5/`, each storage once. The portable norms, gates and router work in fp32: in
bfloat16 they keep fp32 copies beside. Fused norms keep their inputs.

In the formulas: L tokens of this context-parallel rank; S of them on this tensor-parallel rank under sequence parallelism, else L; T tokens
of all context-parallel ranks; e bytes of a number in the model's dtype.
"""

from dataclasses import dataclass

from tandem.config.schema import Config
from tandem.plan.batch import MicroBatch
from tandem.plan.delta import segment_size, segments
from tandem.plan.layout import Layout
from tandem.plan.shapes import Shapes
from tandem.plan.states import ITEM_BYTES

FP32, INT64 = 4, 8
RNG_BYTES = 2 * 5056  # a checkpointed layer keeps the states of torch's CPU generator, which is the device's too on CPU


@dataclass(frozen=True)
class Setting:
    """What decides the bytes of a micro-batch beside its lengths."""

    shapes: Shapes
    layout: Layout
    item: int  # e
    sequence_parallel: bool
    recompute: str
    fused: bool
    on_cpu: bool
    freeze_vision: bool = False
    vision_tp: bool = False

    @classmethod
    def of(cls, config: Config, shapes: Shapes, layout: Layout) -> "Setting":
        parallel = config.parallel
        on_cpu = config.device in ("cpu", "auto")
        sp = layout.tp > 1 if parallel.sp is None else parallel.sp
        fused = not on_cpu and config.model.layers != "portable"
        item, recompute = ITEM_BYTES[config.model.dtype], config.trainer.recompute
        return cls(shapes, layout, item, sp, recompute, fused, on_cpu, config.model.freeze_vision, parallel.vision_tp)

    def tokens(self, batch: MicroBatch) -> tuple[int, int]:
        """L, S"""
        local = batch.num_tokens // self.layout.cp
        return local, local // self.layout.tp if self.sequence_parallel else local


def chunk_bytes(setting: Setting, layers: range, batch: MicroBatch) -> int:
    """Kept by a whole model chunk for one micro-batch, its inputs included."""
    s = setting.shapes
    L, S = setting.tokens(batch)
    total = input_bytes(setting, batch)
    # What the first layer reads: the embedding, of whose output a sequence-parallel rank keeps more than its part, or the stage before's.
    total += _hidden(setting, L if layers.start == 0 else S)
    if layers.start == 0:
        total += vision_bytes(setting, batch)
    total += sum(layer_bytes(setting, s.layer_types[layer], batch, setting.recompute) for layer in layers)
    total -= _hidden(setting, S)  # what the last one gives is freed when it has been sent, or counted with the final norm
    if layers.stop == s.num_layers:
        total += _hidden(setting, S)
        total += norm(setting, S, s.hidden_size) + 3 * FP32 * L
        total += L * s.hidden_size * setting.item if setting.sequence_parallel else 0  # gathered again for the scores
    return total


def layer_bytes(setting: Setting, layer_type: str, batch: MicroBatch, recompute: str) -> int:
    """Kept by one decoder layer, its output included."""
    s = setting.shapes
    _, S = setting.tokens(batch)
    if recompute == "full":
        return _hidden(setting, S) + RNG_BYTES
    mixer = attention_bytes if layer_type == "full_attention" else delta_net_bytes
    total = 2 * norm(setting, S, s.hidden_size) + 2 * _hidden(setting, S) + mixer(setting, batch, recompute)
    if recompute == "selective":
        return total + RNG_BYTES
    return total + (experts_bytes(setting, batch) if s.num_experts else _mlp(setting, batch.num_tokens // setting.layout.cp, s.mlp_size))


def _hidden(setting: Setting, S: int) -> int:
    """Hidden states between layers: kept as they are in fp32, by fused norms and by recompute; else a norm keeps its own fp32 copy."""
    kept = setting.fused or setting.item == FP32 or setting.recompute == "full"
    return S * setting.shapes.hidden_size * setting.item if kept else 0


def norm(setting: Setting, rows: int, width: int) -> int:
    """What RMSNorm keeps beside its input."""
    if setting.fused:
        return rows * (setting.item * width + FP32)
    copy = 0 if setting.item == FP32 else FP32
    return rows * (width * (copy + FP32 + setting.item) + FP32)


def delta_net_bytes(setting: Setting, batch: MicroBatch, recompute: str) -> int:
    s, e, split = setting.shapes, setting.item, setting.layout.tp * setting.layout.cp
    T, width, heads = batch.num_tokens, s.linear_conv_kernel_dim, s.linear_num_value_heads // split
    value, conv = s.value_dim // split, (2 * s.key_dim + s.value_dim) // split
    copy = 0 if e == FP32 else FP32
    of_token = e * (conv + value + 2 * heads)  # in_proj
    of_token += e * conv * (width + 1) + width - 1  # shifted inputs, before and after SiLU; masks
    of_token += FP32 * 4 * heads  # softplus before and after, decay, write strength
    of_token += 0 if copy else e * value  # what the rule gives
    of_token += value * (copy + 2 * FP32) + FP32 * heads  # output norm
    of_token += value * (copy + FP32 + e)  # gate, its SiLU, gated output
    size = segment_size(setting.on_cpu, s.linear_num_value_heads * (s.linear_key_head_dim + s.linear_value_head_dim))
    num_states = sum(sequences for sequences, _ in segments(batch.lengths, size))
    return T * of_token + FP32 * heads * s.linear_key_head_dim * s.linear_value_head_dim * num_states


def attention_bytes(setting: Setting, batch: MicroBatch, recompute: str) -> int:
    s, e, tp, cp = setting.shapes, setting.item, setting.layout.tp, setting.layout.cp
    L, heads = batch.num_tokens // cp, s.num_attention_heads // tp
    query, keys = heads * s.head_dim, s.num_key_value_heads * s.head_dim // tp
    copy = 0 if e == FP32 else FP32
    of_token = 0 if cp > 1 and copy else e * (2 * query + 2 * keys)  # one tensor; queries, gates, keys, values
    of_token += FP32 * 2 * query + (copy + FP32) * keys  # norms of queries and keys
    of_token += FP32 * (heads + s.num_key_value_heads // tp)
    of_token += e * query  # turned by rope
    of_token += e * query if setting.fused else 2 * e * query  # attention's output, and all sequences' in one
    of_token += (FP32 + e) * query if copy else FP32 * query  # sigmoid of the gate
    of_token += e * query  # gated output
    of_token += FP32 * heads  # of the softmax
    if recompute == "selective":  # attention itself is done again, gathering included
        return L * (of_token - e * query - FP32 * heads + e * keys)
    total = L * of_token + e * keys * (2 * batch.num_tokens if cp > 1 else L)  # gathered keys and values, or keys
    if cp > 1 and not setting.fused:
        total += e * sum(length * length // cp for length in batch.lengths)  # masks
    return total


def _mlp(setting: Setting, rows: int, width: int) -> int:
    """Gate and up, SiLU, up plus an offset of 0, their product."""
    return 5 * rows * width // setting.layout.tp * setting.item


def experts_bytes(setting: Setting, batch: MicroBatch) -> int:
    """Router, routed experts and shared expert. Tokens are taken as evenly spread over experts."""
    s, e, layout = setting.shapes, setting.item, setting.layout
    L, S = setting.tokens(batch)
    k, num = s.num_experts_per_tok, s.num_experts
    shared = _mlp(setting, L, s.shared_size) + S * (s.hidden_size * e + e)
    router = S * (k * (INT64 + FP32) + num * (FP32 + 1))
    permutation = S * (k * INT64 + num * (FP32 + 1))
    rows = S * k * layout.etp
    return shared + router + permutation + rows * (s.hidden_size * e + FP32 + 6 * s.mlp_size // layout.etp * e)


def vision_bytes(setting: Setting, batch: MicroBatch) -> int:
    """The tower's, for all images of the micro-batch; nothing when it is frozen."""
    v, e = setting.shapes.vision, setting.item
    N = batch.num_image_tokens * v.patches_of_token
    if not N:
        return 0
    out = batch.num_tokens  # mask of image tokens
    if setting.freeze_vision:
        return out
    width = v.hidden_size
    cut = setting.layout.tp if setting.vision_tp else 1
    block = N * (e * ((7 * width + 2 * v.intermediate_size) // cut + 4 * width) + 4 * FP32 + FP32 * v.num_heads // cut)
    if setting.recompute == "full":
        block = N * e * width + RNG_BYTES // 2
    rest = N * (e * width + 2 * FP32 * width // v.num_heads + 4 * (INT64 + FP32))  # patches with positions, rope, interpolation
    merger = N * (e * width + 2 * FP32) + 2 * N * e * width // cut
    return out + v.depth * block + rest + merger


def input_bytes(setting: Setting, batch: MicroBatch) -> int:
    """Token ids, targets, the layout of the sequences, rope angles, pixels."""
    s, T, cp = setting.shapes, batch.num_tokens, setting.layout.cp
    N = batch.num_image_tokens * s.vision.patches_of_token
    of_token = 4 * INT64 + 9 + (4 * INT64 if cp > 1 else 0)
    pixels = N * s.vision.patch_dim * (FP32 + (0 if setting.item == FP32 else setting.item))
    return T * of_token + 2 * FP32 * s.rotary_dim * T // cp + pixels
